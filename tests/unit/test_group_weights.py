"""Samples of batches, and weights of groups by the samples of their blocks."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from lightning_hier.algorithms.weighting import GroupWeight, group_weights
from lightning_hier.strategies.batch_samples import batch_samples
from tests.trainer.fitting import Net

Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Fields:
    """A batch of a user."""

    x: Tensor
    name: str = "train"


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(3, 5),
        [torch.zeros(3, 5), torch.zeros(3)],
        {"x": (torch.zeros(3), ["a", "b"]), "scale": torch.tensor(2.0), "id": 7},
        Pair(torch.zeros(3, 1), None),
        Fields(torch.zeros(3)),
    ],
)
def test_samples_of_a_batch(batch: Any) -> None:
    assert batch_samples(pl.LightningModule(), batch) == 3.0


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([torch.zeros(3, 5), torch.zeros(5)], "a list has first dimensions of 3, 5"),
        (["text"], "a list has no tensors"),
        (iter([torch.zeros(3)]), "a list_iterator has no tensors"),
        (torch.tensor(1.0), "a Tensor has no tensors"),
    ],
)
def test_unclear_samples_are_an_error(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*batch_samples.*weighting='equal'"):
        batch_samples(pl.LightningModule(), batch)


class _Tokens(Net):
    def __init__(self, number: Any = 7) -> None:
        super().__init__()
        self.number = number

    def batch_samples(self, batch: Any) -> Any:
        return self.number


def test_module_counts_its_samples() -> None:
    assert batch_samples(_Tokens(), "anything") == 7.0
    assert batch_samples(_Tokens(torch.tensor(5)), "anything") == 5.0
    for wrong in (-1, torch.nan, None, "7"):
        with pytest.raises(ValueError, match="must return the samples of a batch.*got"):
            batch_samples(_Tokens(wrong), "anything")


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (partial(lh.BMUF, block_lr=1.2), "block_lr=1.2 .* must be at most c=1: .*set block_mom"),
        (partial(lh.BMUFAdam, block_lr=2.0, c=1.5), "block_lr=2 .* must be at most c=1.5"),
        (partial(lh.BMUF, update_from="start"), "update_from='start' can't be .*set block_mom"),
        (partial(lh.DiLoCo, outer_momentum="auto", outer_lr=1.1), "outer_lr=1.1 .*set outer_mom"),
    ],
)
def test_momentum_by_samples_has_a_value_for_every_block(make: Any, rule: str) -> None:
    """The effective number of groups may be 1. A number as momentum does not depend on it."""
    with pytest.raises(ValueError, match=rule):
        make(weighting="samples")
    make()
    name = "outer_momentum" if make.func is lh.DiLoCo else "block_momentum"
    make(weighting="samples", **{name: 0.5})


def test_unequal_samples() -> None:
    weights = [own.weight for own in group_weights([30, 10, 0])]
    [effective] = {own.effective for own in group_weights([30, 10, 0])}
    assert weights == [0.75, 0.25, 0.0]
    assert effective == pytest.approx(1600 / 1000, rel=1e-15)
    assert effective == pytest.approx(1 / sum(own * own for own in weights), rel=1e-15)
    assert group_weights([5, 0]) == [GroupWeight(1.0, 1.0), GroupWeight(0.0, 1.0)]
    assert group_weights([0, 0]) == [GroupWeight(0.5, 2.0)] * 2


def test_a_group_with_all_samples_has_the_momentum_of_a_single_group() -> None:
    syncs = lh.BMUF(block_lr=0.5), lh.BMUFAdam(block_lr=0.5), lh.DiLoCo(outer_momentum="auto")
    for sync in syncs:
        own: Any = sync
        eta = own.momentum if isinstance(sync, lh.DiLoCo) else own.eta
        assert own.eta_of(3)(1.0) == eta(1)
        assert own.eta_of(3)(3.0) == eta(3)


@pytest.mark.parametrize("samples", [[1, -1], [math.nan, 1], [1, math.inf]])
def test_bad_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples must be finite numbers of at least 0"):
        group_weights(samples)
