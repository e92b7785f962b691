"""Tests several virtual workers per rank: weights, logs, checkpoints, samplers and buffers.

A run must equal one with a rank for each worker.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.ranks import run_ranks
from tests.trainer.fitting import AVERAGING, BMUF, BMUF_GTC, GTC, Fitted, Net, fitted, loader

WORKERS = 4


def _with_workers(strategy: Any, **settings: Any) -> Any:
    """Make a strategy with `WORKERS` workers in total, divided evenly among the ranks."""
    return strategy(virtual_workers=WORKERS // int(os.environ["WORLD_SIZE"]), **settings)


def _averaging_momentum() -> Any:
    across = "leader" if os.environ["WORLD_SIZE"] == str(WORKERS) else "sharded"
    return _with_workers(STRATEGIES["bmuf_gtc"], local_momentum="average", across=across)


_GTC = partial(GTC, density=0.1, dense_below=0)
STRATEGIES: dict[str, Any] = {
    "bmuf": partial(BMUF, block_size=3),
    "bmuf_warm": partial(BMUF, block_size=3, warmup_steps=3),
    "bmuf_gtc": partial(BMUF_GTC, block_size=3, density=0.1, dense_below=0),
    "bmuf_gtc_warm": partial(BMUF_GTC, block_size=3, density=0.1, dense_below=0, warmup_steps=3),
    "gtc": _GTC,
    "gtc_averaged": _GTC,
    "overlap": partial(BMUF, block_size=3, overlap=True),
}
VIRTUAL: dict[str, Any] = {name: partial(_with_workers, make) for name, make in STRATEGIES.items()}
VIRTUAL["averaging_momentum"] = _averaging_momentum
CLIPPED = {"precision": "64-true", "gradient_clip_val": 0.1}


class _Dropout(Net):
    """Draws random numbers in every step, uses the estimated number of steps, and logs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.double()
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.layers(batch))
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        steps = int(self.trainer.estimated_stepping_batches)  # creates the data loader
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_train_epoch_end(self) -> None:
        self.notes.append(float(self.trainer.callback_metrics["loss"]))


def _doubles(batches: int) -> DataLoader[Any]:
    return loader(batches, ranks=WORKERS, dtype=torch.float64)


def _fit(name: str, model: Any = _Dropout, data: Any = None, **settings: Any) -> Fitted:
    pl.seed_everything(7, verbose=False)  # seeds the sampler; a resume overwrites the rest
    settings = {"max_epochs": 2, "data": data or _doubles(8), **settings}
    if name == "gtc_averaged":
        settings["callbacks"] = [EMAWeightAveraging(decay=0.8)]
    return fitted(VIRTUAL[name], model, **settings)


def _assert_same(result: Fitted, expected: Fitted) -> None:
    torch.testing.assert_close(result.weights, expected.weights, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.notes, expected.notes, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.logged, expected.logged, rtol=0, atol=1e-9)
    assert result.steps == expected.steps


_slow = partial(pytest.param, marks=pytest.mark.slow)
_TWO, _OFTEN = {"accumulate_grad_batches": 2}, {"val_check_interval": 2}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bmuf", _OFTEN),
        _slow("bmuf", _TWO),
        _slow("bmuf", CLIPPED),
        _slow("bmuf_warm", {}),
        ("bmuf_gtc_warm", {**_TWO, **_OFTEN}),
        _slow("bmuf_gtc", CLIPPED),
        _slow("gtc", _TWO),
        _slow("gtc_averaged", _OFTEN),
    ],
)
def test_run_equals_one_with_a_rank_for_each_worker(name: str, settings: dict[str, Any]) -> None:
    """In dropout, every worker draws the random numbers of its rank in that run."""
    settings = {"validate": _doubles(2), **settings}
    expected = run_ranks(_fit, WORKERS, name, **settings)[0]
    for ranks in (1, 2):
        for result in run_ranks(_fit, ranks, name, **settings):
            _assert_same(result, expected)


def _describe() -> tuple[dict[str, Any], int]:
    strategy = VIRTUAL["bmuf"]()
    fitted(lambda: strategy, _Dropout, data=_doubles(3))
    return strategy.describe(), strategy.world_size


def test_eta_depends_on_the_workers_and_not_on_the_ranks() -> None:
    ((described, ranks),) = run_ranks(_describe, 1)
    assert (described["virtual_workers"], ranks) == (WORKERS, 1)


class _DividesWhenMade(DistributedSampler[Any]):
    """Sorts the items and divides them among ranks in its constructor, as samplers by length do."""

    def __init__(self, dataset: Any, rank: int, ranks: int) -> None:
        super().__init__(dataset, num_replicas=ranks, rank=rank)
        order = sorted(range(len(dataset)), key=lambda item: float(dataset[item][0].sum()))
        self.own = order[rank::ranks]

    def __iter__(self) -> Any:
        return iter(self.own[self.epoch :] + self.own[: self.epoch])

    def __len__(self) -> int:
        return len(self.own)


class _Data(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        trainer: Any = self.trainer
        dataset = _doubles(5).dataset
        sampler = _DividesWhenMade(dataset, trainer.global_rank, trainer.world_size)
        return DataLoader(dataset, batch_size=4, sampler=sampler)


def test_sampler_that_divides_in_its_constructor_is_made_for_each_worker() -> None:
    settings = {"data": _Data, "use_distributed_sampler": False}
    expected = run_ranks(_fit, WORKERS, "bmuf_gtc", **settings)[0]
    for ranks in (1, 2):
        for result in run_ranks(_fit, ranks, "bmuf_gtc", **settings):
            _assert_same(result, expected)


class _DrawsOtherwise(_Dropout):
    """Starts with other random numbers, on which a resumed run must not depend."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(50)


@pytest.mark.parametrize(
    "name", [_slow("bmuf"), _slow("overlap"), _slow("bmuf_gtc"), "averaging_momentum"]
)
@pytest.mark.parametrize("ranks", [_slow(1), 2, _slow(4)])
def test_run_resumes_on_other_numbers_of_ranks(name: str, ranks: int, tmp_path: Path) -> None:
    """The resumed run is exact, for example when half of the cluster is lost or comes back."""
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1)
    settings = {"enable_checkpointing": True, "callbacks": [saves], "data": _doubles(6)}
    whole = run_ranks(_fit, ranks, name, **settings)[0]
    path = tmp_path / "epoch=1-step=8.ckpt"
    settings = {"data": _doubles(6), "ckpt_path": path, "weights_only": True}
    for fewer_or_more in (1, 2, 4):
        for resumed in run_ranks(_fit, fewer_or_more, name, model=_DrawsOtherwise, **settings):
            torch.testing.assert_close(resumed.weights, whole.weights, rtol=0, atol=1e-9)


class _Counting(Net):
    """Has an integer buffer that grows with the data and that synchronisation makes equal."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.notes.append(int(self.count))
        self.count += 1 + int(batch[0].abs().sum() * 1000)
        return self.loss(batch)


def _count() -> tuple[list[int], int]:
    strategy = partial(_with_workers, AVERAGING, block_size=2)
    result = fitted(strategy, _Counting, data=loader(5, ranks=WORKERS))
    return result.notes, int(result.state["count"])


def test_synchronised_buffers_are_those_of_the_first_worker() -> None:
    """Without virtual workers, they are those of rank 0."""
    ((virtual, at_end),), real = run_ranks(_count, 1), run_ranks(_count, WORKERS)
    for worker, (counts, last) in enumerate(real):
        assert at_end == last
        assert virtual[worker::WORKERS] == counts
