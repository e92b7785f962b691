"""Seeds of the ranks, from which Lightning shuffles the data before it divides them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, make_trainer
from tests.trainer.mistakes import check_mistake

ROWS = 24


class _Untrained(Net):
    """Fails if it gets a batch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        raise AssertionError("the mistake was found after a batch")


class _Noting(Net):
    """Notes the rows of its batches; draws as its own rank does once training starts."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []

    def on_train_start(self) -> None:
        pl.seed_everything(100 + _rank())

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.rows += batch[0][:, 0].tolist()
        return super().training_step(batch, batch_idx)


def _rank() -> int:
    return int(os.environ["RANK"])


def _data(**settings: Any) -> DataLoader[Any]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    inputs[:, 0] = torch.arange(ROWS)
    return DataLoader(TensorDataset(inputs, inputs[:, :2]), batch_size=2, **settings)


def _fit(data: DataLoader[Any], strategy: Any = "bmuf", model: Any = None, **settings: Any) -> None:
    make_trainer(strategy, **settings).fit(model or _Untrained(), data)


def _shuffled() -> None:
    pl.seed_everything(_rank())
    _fit(_data(shuffle=True))


def _virtual() -> None:
    os.environ["PL_GLOBAL_SEED"] = str(_rank())
    _fit(_data(shuffle=True), lh.BMUFStrategy(virtual_workers=2, warmup_steps=0, block_size=50))


def _under_servers() -> None:
    pl.seed_everything(_rank())
    _fit(_data(), "psp")  # Lightning shuffles what it divides for training, in any case


def _wrapped() -> None:
    pl.seed_everything(_rank())
    data = TensorDataset(torch.zeros(ROWS, 4), torch.zeros(ROWS, 2))
    _fit(_data(sampler=RandomSampler(data)))


def _own() -> None:
    data = _data().dataset
    _fit(_data(sampler=DistributedSampler(data, 4, _rank(), seed=_rank())))


@pytest.mark.parametrize("mistake", [_shuffled, _virtual, _under_servers, _wrapped, _own])
def test_other_seeds_are_one_error_on_every_rank(mistake: Callable[[], None]) -> None:
    check_mistake(
        mistake,
        "the seeds are 0 on rank 0; 1 on rank 1; 2 on rank 2; 3 on rank 3.*PL_GLOBAL_SEED.*"
        "on_train_start.*use_distributed_sampler=False",
    )


def _rows(case: str) -> list[float]:
    model = _Noting()
    if case == "set to the default on one rank" and _rank() == 1:
        os.environ["PL_GLOBAL_SEED"] = "0"
    settings: dict[str, Any] = {"shuffle": True}
    if case == "divided by the user":
        pl.seed_everything(_rank())
        own: Any = DistributedSampler(_data().dataset, 4, _rank(), shuffle=False)
        settings = {"sampler": own}
    _fit(_data(**settings), "bmuf", model, use_distributed_sampler=case != "divided by the user")
    os.environ.pop("PL_GLOBAL_SEED", None)
    return model.rows


def _all_rows(cases: list[str]) -> list[list[float]]:
    return [_rows(case) for case in cases]


def test_ranks_that_need_no_seed_go_on_and_see_each_row_once() -> None:
    """Not seeded at all; seeded where it does not matter; each rank by itself after the start."""
    cases = ["not seeded", "set to the default on one rank", "divided by the user"]
    by_rank = run_ranks(_all_rows, 4, cases)
    for number in range(len(cases)):
        assert sorted(row for rows in by_rank for row in rows[number]) == list(range(ROWS))
