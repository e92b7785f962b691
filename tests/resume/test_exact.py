"""A run that is stopped and resumed ends as the one that was not, to the last bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, SaveAt, differences, outcome, shuffled, stop_and_go_on
from tests.trainer.fitting import make_trainer

BMUF = partial(lh.BMUFStrategy, block_size=4, warmup_steps=0)
ADAM = partial(lh.BMUFAdamStrategy, block_size=4, warmup_steps=0, local_beta1="keep")

STRATEGIES: dict[str, tuple[int, Any, str]] = {
    "averaging": (2, partial(lh.ModelAveragingStrategy, block_size=4, warmup_steps=0), "SGD"),
    "bmuf": (2, BMUF, "SGD"),
    "bmuf_keep": (3, partial(BMUF, local_momentum="keep"), "SGD"),
    "bmuf_average": (2, partial(BMUF, local_momentum="average"), "SGD"),
    "bmuf_with_adam": (2, BMUF, "Adam"),
    "bmuf_adam": (4, ADAM, "Adam"),
    "bmuf_nadam": (2, ADAM, "NAdam"),
    "gtc": (3, partial(lh.GTCStrategy, density=0.2, dense_below=10, warmup_steps=0), "SGD"),
    "bmuf_gtc": (
        4,
        partial(
            lh.BMUFGTCStrategy,
            group_size=2,
            block_size=4,
            density=0.2,
            dense_below=10,
            warmup_steps=0,
        ),
        "SGD",
    ),
    "bmuf_overlap": (2, partial(BMUF, overlap=True), "SGD"),
    "bmuf_gtc_overlap_int8": (
        4,
        partial(
            lh.BMUFGTCStrategy,
            group_size=2,
            block_size=3,
            density=0.2,
            dense_below=10,
            across="sharded",
            across_dtype="int8",
            overlap=True,
            warmup_steps=0,
        ),
        "SGD",
    ),
    "bmuf_adam_bfloat16": (2, partial(ADAM, across_dtype="bfloat16"), "Adam"),
    "bmuf_virtual": (2, partial(BMUF, local_momentum="keep", virtual_workers=2), "SGD"),
    "bmuf_adam_virtual": (2, partial(ADAM, virtual_workers=3), "Adam"),
    "bmuf_gtc_virtual": (  # two models on a rank, two workers each
        2,
        partial(
            lh.BMUFGTCStrategy,
            group_size=2,
            block_size=4,
            density=0.2,
            dense_below=10,
            virtual_workers=4,
            warmup_steps=0,
        ),
        "SGD",
    ),
    "bmuf_overlap_virtual": (2, partial(BMUF, overlap=True, virtual_workers=3), "SGD"),
    "gtc_virtual": (
        2,
        partial(lh.GTCStrategy, density=0.2, dense_below=10, virtual_workers=2, warmup_steps=0),
        "SGD",
    ),
    "bmuf_all_reduce": (
        3,
        partial(
            lh.HierarchicalStrategy,
            group_size=3,
            gradient_sync=lh.AllReduce(),
            block_sync=lh.BMUF(block_size=4),
            warmup_steps=0,
        ),
        "SGD",
    ),
}


def _check(name: str, tmp_path: Path, hook: str, number: int, **settings: Any) -> None:
    world_size, strategy, optimizer = STRATEGIES[name]
    workers = strategy.keywords.get("virtual_workers", 1)
    settings = {"optimizer": optimizer, "workers": workers, **settings}
    found = run_ranks(stop_and_go_on, world_size, strategy, hook, number, tmp_path, **settings)
    assert found == [[]] * world_size


SLOW = ("bmuf_average", "bmuf_with_adam", "bmuf_nadam", "bmuf_adam_virtual")


@pytest.mark.parametrize(
    "name",
    [pytest.param(own, marks=pytest.mark.slow) if own in SLOW else own for own in STRATEGIES],
)
def test_in_the_middle_of_a_block_and_of_an_epoch(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, "on_train_batch_end", 7)


class _KnowsItsLength(DropoutNet):
    """Asks how many steps there will be, which begins the data before optimizers are there."""

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.mark.parametrize("name", [pytest.param("bmuf", marks=pytest.mark.slow), "bmuf_virtual"])
def test_in_a_first_epoch_that_was_begun_with_the_optimizers(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, "on_train_batch_end", 3, make_model=_KnowsItsLength)


BOTH = ["bmuf_gtc", pytest.param("bmuf_adam", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    "number",
    [pytest.param(1, marks=pytest.mark.slow), 4, 5, pytest.param(10, marks=pytest.mark.slow)],
)
def test_after_some_steps(name: str, number: int, tmp_path: Path) -> None:
    """The first one, the end of a block, and the last batch of an epoch."""
    _check(name, tmp_path, "on_train_batch_end", number)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_validation_end"])
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_at_the_end_of_an_epoch(name: str, hook: str, number: int, tmp_path: Path) -> None:
    _check(name, tmp_path, hook, number)


def _stop_again_and_again(stops: list[int], folder: Path) -> list[str]:
    def train(path: Path | None, *callbacks: SaveAt) -> dict[str, Any]:
        trainer = make_trainer(BMUF(), callbacks=list(callbacks), max_epochs=3)
        torch.manual_seed(1 + trainer.global_rank)
        model = DropoutNet()
        trainer.fit(model, shuffled(5), ckpt_path=path)
        return outcome(trainer, model)

    through, path = train(None), None
    for number, steps in enumerate(stops):
        saved = folder / f"{number}.ckpt"
        train(path, SaveAt("on_train_batch_end", steps, saved))
        path = saved
    resumed = train(path)
    through["seen"] = through["seen"][sum(stops) :]
    return differences(through, resumed)


@pytest.mark.parametrize(
    "stops", [[4, 1, 5, 2], *(pytest.param(s, marks=pytest.mark.slow) for s in ([5, 3], [2] * 4))]
)
def test_again_and_again(stops: list[int], tmp_path: Path) -> None:
    """So many steps after each start; epochs have five: at an epoch's end, then in the next."""
    assert run_ranks(_stop_again_and_again, 2, stops, tmp_path) == [[]] * 2


@pytest.mark.parametrize("name", ["bmuf_gtc", pytest.param("bmuf_virtual", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_in_a_validation_within_an_epoch(name: str, number: int, tmp_path: Path) -> None:
    _check(name, tmp_path, "on_validation_end", number, val_check_interval=2)


def test_without_validation_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    _check("bmuf_gtc", tmp_path, "on_train_epoch_end", 1, limit_val_batches=0)


@pytest.mark.parametrize(
    ("number", "ranks"),
    [
        (3, 4),
        (6, 2),
        *(pytest.param(*own, marks=pytest.mark.slow) for own in ((1, 4), (6, 4), (3, 2))),
    ],
)
def test_during_the_warm_up_and_at_its_end(number: int, ranks: int, tmp_path: Path) -> None:
    """Four workers: how a sum of three and more is rounded depends on DDP's buckets."""
    strategy = partial(
        lh.BMUFGTCStrategy,
        group_size=2,
        block_size=4,
        warmup_steps=6,
        density=0.2,
        dense_below=10,
        virtual_workers=4 // ranks,
    )
    arguments = (strategy, "on_train_batch_end", number, tmp_path)
    found = run_ranks(stop_and_go_on, ranks, *arguments, workers=4 // ranks)
    assert found == [[]] * ranks


def test_buckets_that_ddp_forms_anew(tmp_path: Path) -> None:
    """Many small buckets in another order than that of the parameters, summed over three ranks."""
    strategy = partial(
        lh.HierarchicalStrategy, group_size="world", bucket_cap_mb=0.0001, warmup_steps=0
    )
    found = run_ranks(stop_and_go_on, 3, strategy, "on_train_batch_end", 1, tmp_path)
    assert found == [[]] * 3


@pytest.mark.parametrize(
    "name", ["bmuf_gtc", pytest.param("bmuf_virtual", marks=pytest.mark.slow), "bmuf_gtc_virtual"]
)
def test_in_a_step_that_is_accumulated(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, "on_train_batch_end", 6, accumulate_grad_batches=2)


def test_with_workers_that_load_data(tmp_path: Path) -> None:
    loader = {"num_workers": 1, "multiprocessing_context": "fork"}
    _check("bmuf", tmp_path, "on_train_batch_end", 7, loader=loader)


@pytest.mark.parametrize(
    "precision", [pytest.param("bf16-mixed", marks=pytest.mark.slow), "64-true"]
)
def test_in_other_precisions(precision: str, tmp_path: Path) -> None:
    _check("bmuf_gtc", tmp_path, "on_train_batch_end", 7, precision=precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("name", ["bmuf", "bmuf_adam", "bmuf_gtc", "bmuf_gtc_overlap_int8"])
def test_on_a_card_that_the_ranks_share(name: str, precision: str, tmp_path: Path) -> None:
    """Each rank a host of its own, over gloo: NCCL wants a card for every rank."""
    world_size, strategy, optimizer = STRATEGIES[name]
    over_gloo = partial(strategy, process_group_backend="gloo")
    found = run_ranks(
        stop_and_go_on,
        world_size,
        over_gloo,
        "on_train_batch_end",
        7,
        tmp_path,
        ranks_per_node=1,
        optimizer=optimizer,
        accelerator="gpu",
        precision=precision,
    )
    assert found == [[]] * world_size


class _WithBest(DropoutNet):
    """With a buffer that is infinite until the first step has lowered it."""

    best: torch.Tensor

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.register_buffer("best", torch.tensor(float("inf")))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.best = torch.minimum(self.best, loss.detach())
        return loss


def test_buffer_that_was_infinite_at_the_start_is_still_kept_equal(tmp_path: Path) -> None:
    make = partial(
        lh.HierarchicalStrategy,
        group_size=2,
        block_sync=lh.BMUF(block_size=4, local_momentum="average", across="sharded"),
        warmup_steps=0,
    )
    arguments = (make, "on_train_batch_end", 7, tmp_path)
    for found in run_ranks(stop_and_go_on, 4, *arguments, make_model=_WithBest):
        assert found == []
