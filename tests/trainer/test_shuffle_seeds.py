"""Tests the check of the ranks' seeds, with which Lightning shuffles the data and divides it.

With different seeds, ranks would not see each row once.
"""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.ranks import run_ranks
from tests.trainer.fitting import Net, Untrained, make_trainer, this_rank
from tests.trainer.mistakes import Mistakes, check_mistakes

ROWS = 24


class _Noting(Net):
    """Notes the rows of its batches, and seeds each rank differently at the start of training."""

    def on_train_start(self) -> None:
        pl.seed_everything(100 + this_rank())

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.notes += batch[0][:, 0].tolist()
        return self.loss(batch)


def _data(**settings: Any) -> DataLoader[Any]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
    inputs[:, 0] = torch.arange(ROWS)
    return DataLoader(TensorDataset(inputs, inputs[:, :2]), batch_size=2, **settings)


def _fit(data: DataLoader[Any], strategy: Any = "bmuf", model: Any = None, **settings: Any) -> None:
    make_trainer(strategy, **settings).fit(model or Untrained(), data)


def _by_variable() -> None:
    os.environ["PL_GLOBAL_SEED"] = str(this_rank())
    _fit(_data(shuffle=True))


def _under_servers() -> None:
    pl.seed_everything(this_rank())
    _fit(_data(), "psp")  # Lightning always shuffles training data that it divides


def _own() -> None:
    rank = this_rank()
    _fit(_data(sampler=DistributedSampler(_data().dataset, 4, rank, seed=rank)))


MISTAKES: Mistakes = {
    mistake.__name__: (
        mistake,
        "the seeds are 0 on rank 0; 1 on rank 1; 2 on rank 2; 3 on rank 3.*PL_GLOBAL_SEED.*"
        "on_train_start.*use_distributed_sampler=False",
    )
    for mistake in (_by_variable, _under_servers, _own)
}


def test_different_seeds_are_one_error_on_every_rank() -> None:
    check_mistakes(__name__)


def _rows() -> list[list[float]]:
    """Rows of this rank, where one rank sets the default seed, and where the user divides data."""
    pl.seed_everything(this_rank())
    sampler: Any = DistributedSampler(_data().dataset, 4, this_rank(), shuffle=False)
    divided, by_default = _Noting(), _Noting()
    _fit(_data(sampler=sampler), "bmuf", divided, use_distributed_sampler=False)
    del os.environ["PL_GLOBAL_SEED"]
    if this_rank() == 1:
        os.environ["PL_GLOBAL_SEED"] = "0"
    _fit(_data(shuffle=True), "bmuf", by_default)
    return [divided.notes, by_default.notes]


def test_ranks_that_need_no_common_seed_see_each_row_once() -> None:
    """Each rank also sets another seed after the start of training."""
    for by_rank in zip(*run_ranks(_rows, 4), strict=True):
        assert sorted(row for rows in by_rank for row in rows) == list(range(ROWS))
