"""Blocks whose length a rule computes from the learning rate."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from lightning_hier import QSR
from tests.ranks import run_ranks
from tests.resume.runs import check_exact
from tests.trainer.fitting import Net, fit, weights

RATES = [0.4, 0.4, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.01]


class _Net(Net):
    """A module with a learning rate for each step. Records the blocks and the steps in a block."""

    def __init__(self, rates: list[float]) -> None:
        super().__init__(momentum=0.5)
        self.rates = rates
        self.places: list[tuple[int, int]] = []
        self.is_logged = False

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.5)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.rates[min(step, len(self.rates) - 1)]
        )
        return [optimizer], [{"scheduler": rate, "interval": "step"}]

    def on_train_batch_end(self, *_: Any) -> None:
        strategy: Any = self.trainer.strategy
        [count] = strategy._session.worker.steps
        self.places.append((count.blocks, count.in_block))
        metrics = strategy.metrics()
        if "hier/block/block_size" in metrics:
            assert metrics["hier/block/block_size"] == count.block_size
            self.is_logged = True


def _run(sync: Any, rates: list[float], **strategy: Any) -> tuple[list[tuple[int, int]], Tensor]:
    model = _Net(rates)
    own = {"group_size": 1, "warmup_steps": 0, **strategy}
    fit(lh.HierarchicalStrategy(block_sync=sync, **own), len(rates), model)
    assert model.is_logged == (sync.block_rule is not None)
    return model.places, weights(model)


# Two steps, the minimum, at 0.4 and 0.3, four at 0.2, then five, the maximum.
SIZES = [2, 2, 4, 5, 5]
PLACES = [
    (number + (place == size), place % size)
    for number, size in enumerate(SIZES)
    for place in range(1, size + 1)
]


def _runs(syncs: list[Any], rates: list[float]) -> list[tuple[list[tuple[int, int]], Tensor]]:
    return [_run(sync, rates) for sync in syncs]


def test_blocks_have_the_length_of_the_rule_on_all_ranks() -> None:
    settings: list[Any] = [{}, {"fragments": 2, "overlap": True, "merge": 0.5}]
    rule = QSR(coefficient=0.4, max_block_size=5)
    syncs = [lh.DiLoCo(block_size=2, block_rule=rule, **own) for own in settings]
    for first, second in zip(*run_ranks(_runs, 2, syncs, RATES), strict=True):
        assert first[0] == second[0] == PLACES[: len(RATES)]
        assert len({size for size, _ in first[0]}) == 5
        assert torch.equal(first[1], second[1])


def test_a_constant_rate_makes_blocks_of_one_length() -> None:
    rule = QSR(coefficient=0.245, max_block_size=50)  # (0.245 / 0.1)^2 = 6.0025
    settings: Any = {"block_momentum": 0.5, "fragments": 2, "overlap": 2}
    syncs = lh.BMUF(block_size=3, block_rule=rule, **settings), lh.BMUF(block_size=6, **settings)
    one, other = run_ranks(_runs, 2, [*syncs], [0.1] * 15)[0]
    assert one[0] == other[0]
    assert torch.equal(one[1], other[1])


def test_resume_in_the_middle_of_a_long_block(tmp_path: Path) -> None:
    rule = QSR(coefficient=0.17, max_block_size=50)
    sync = lh.DiLoCo(block_size=2, fragments=2, overlap=1, block_rule=rule)
    strategy = partial(lh.HierarchicalStrategy, group_size=1, block_sync=sync, warmup_steps=0)
    check_exact(2, strategy, tmp_path, optimizer="SGD")


def test_wrong_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="block_rule must be QSR"):
        lh.BMUF(block_rule=0.5)
    with pytest.raises(ValueError, match="max_block_size must be at least block_size"):
        lh.BMUF(block_momentum=0.5, block_size=9, block_rule=QSR(coefficient=1.0, max_block_size=8))
