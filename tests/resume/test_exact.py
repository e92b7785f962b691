"""Tests that a resumed run ends as an uninterrupted one, to the last bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import (
    DropoutNet,
    SaveAt,
    check_exact,
    differences,
    outcome,
    shuffled,
    stop_each_in_the_middle,
)
from tests.trainer.fitting import (
    BMUF,
    BMUF_ADAM,
    BMUF_GTC,
    GTC,
    HIERARCHICAL,
    make_trainer,
)

_GROUPS_OF_ONE = partial(HIERARCHICAL, group_size=1)
_SPARSE: Any = {"block_size": 4, "across_dtype": "int4", "across_density": 0.1}
_QUANTISED = {"across": "sharded", "across_dtype": "int8", "overlap": True}
_DELAYED = lh.BMUFAdam(block_size=4, overlap=3, moments_every=2, across="sharded")
_STREAMING: Any = {"fragments": 2, "overlap": 3, "merge": 0.5}
_DILOCO = partial(lh.DiLoCoStrategy, group_size=1, block_size=4, warmup_steps=0)
_ADAMW = partial(torch.optim.AdamW, lr=0.1)
STRATEGIES: dict[str, tuple[int, Any, str]] = {
    "bmuf": (2, BMUF, "SGD"),
    "bmuf_nadam": (2, BMUF_ADAM, "NAdam"),
    "gtc_of_gradients": (2, partial(GTC, of="gradient"), "SGD"),
    "gtc_adamw": (2, GTC, "AdamW"),
    # The update of one fragment is in flight.
    "streaming": (
        2,
        partial(_GROUPS_OF_ONE, block_sync=lh.DiLoCo(**_SPARSE, **_STREAMING)),
        "SGD",
    ),
    "adam_streaming": (
        2,
        partial(_GROUPS_OF_ONE, block_sync=lh.BMUFAdam(**_SPARSE, **_STREAMING)),
        "Adam",
    ),
    # The third fragment has just been synchronised.
    "diloco_fragments": (2, partial(_DILOCO, fragments=4), "AdamW"),
    "bmuf_gtc": (4, BMUF_GTC, "SGD"),
    "bmuf_gtc_overlap_int8": (4, partial(BMUF_GTC, block_size=3, **_QUANTISED), "SGD"),
    # With four ranks, the rounding of a sum depends on DDP's buckets.
    "warming_up": (4, partial(BMUF_GTC, warmup_steps=8), "SGD"),
    "adam_overlap": (4, partial(HIERARCHICAL, group_size=2, block_sync=_DELAYED), "NAdam"),
    "adamw_outside": (
        4,
        partial(_DILOCO, group_size=2, block_size=3, outer_optimizer=_ADAMW, across="sharded"),
        "SGD",
    ),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_in_the_middle_of_a_block_and_of_an_epoch(ranks: int, tmp_path: Path) -> None:
    runs = {name: run for name, (number, *run) in STRATEGIES.items() if number == ranks}
    results = run_ranks(stop_each_in_the_middle, ranks, runs, tmp_path)
    assert results == [{name: [] for name in runs}] * ranks


class _KnowsItsLength(DropoutNet):
    """Uses the estimated number of steps, which creates the data loader before the optimizers."""

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def test_in_an_epoch_whose_data_loader_was_created_before_the_optimizers(tmp_path: Path) -> None:
    check_exact(2, BMUF, tmp_path, number=3, make_model=_KnowsItsLength, max_epochs=2)


def _stop_again_and_again(stops: list[int], folder: Path) -> list[str]:
    def train(path: Path | None, *callbacks: SaveAt) -> dict[str, Any]:
        trainer = make_trainer(BMUF(), callbacks=list(callbacks), max_epochs=3)
        torch.manual_seed(1 + trainer.global_rank)
        model = DropoutNet()
        trainer.fit(model, shuffled(5), ckpt_path=path)
        return outcome(trainer, model)

    whole, path = train(None), None
    for number, steps in enumerate(stops):
        saved = folder / f"{number}.ckpt"
        train(path, SaveAt("on_train_batch_end", steps, saved))
        path = saved
    resumed = train(path)
    whole["seen"] = whole["seen"][sum(stops) :]
    return differences(whole, resumed)


def test_again_and_again(tmp_path: Path) -> None:
    """Each number is that of steps after a start. Epochs have five steps.

    The second save is at the end of an epoch.
    """
    assert run_ranks(_stop_again_and_again, 2, [4, 1, 5, 2], tmp_path) == [[]] * 2


def test_buckets_that_ddp_rebuilds(tmp_path: Path) -> None:
    """DDP sums many small buckets, in another order than that of the parameters, over three ranks.

    The rounding therefore depends on the buckets.
    """
    strategy = partial(HIERARCHICAL, group_size="world", bucket_cap_mb=0.0001)
    check_exact(3, strategy, tmp_path, number=1, max_epochs=1)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("name", ["bmuf", "bmuf_nadam", "bmuf_gtc_overlap_int8"])
def test_on_a_gpu_that_the_ranks_share(name: str, precision: str, tmp_path: Path) -> None:
    """Each rank is a host, over gloo. NCCL needs a GPU for each rank."""
    ranks, strategy, optimizer = STRATEGIES[name]
    over_gloo = partial(strategy, process_group_backend="gloo")
    settings = {"optimizer": optimizer, "accelerator": "gpu", "precision": precision}
    check_exact(ranks, over_gloo, tmp_path, ranks_per_node=1, **settings)


class _WithBest(DropoutNet):
    """Has a buffer that is infinite until the first step."""

    best: torch.Tensor

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.register_buffer("best", torch.tensor(float("inf")))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.best = torch.minimum(self.best, loss.detach())
        return loss


def test_buffer_that_was_infinite_at_the_start_is_still_synchronised(tmp_path: Path) -> None:
    sync = lh.BMUF(block_momentum=0.5, block_size=4, local_momentum="average", across="sharded")
    strategy = partial(HIERARCHICAL, group_size=2, block_sync=sync)
    check_exact(4, strategy, tmp_path, make_model=_WithBest, max_epochs=2)
