"""An excluded group restarts from moments that belong to its start model.

This also holds if moments are exchanged at other times than the model.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier import BMUFAdam, HierarchicalStrategy
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, this_rank, weights

_LR = 1e-3
_SETTINGS: list[dict[str, Any]] = [
    {"fragments": 2},
    {"moments_every": 3},
    {"fragments": 2, "moments_every": 2, "moments": "average"},
    {"fragments": 3, "across_dtype": "int8"},
    {"fragments": 2, "overlap": 3, "moments_every": 2},
]


class _Net(Net):
    """Has NaN gradients on rank 1 in step 47. Records the largest change of a weight per step."""

    def __init__(self) -> None:
        super().__init__(optimizer="Adam", lr=_LR)
        self.steps = 0
        self.longest: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        broken = self.steps == 47 and this_rank() == 1
        loss: Any = super().training_step(batch, batch_idx)
        return loss * float("nan") if broken else loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        before = weights(self).clone()
        moved: list[float] = []
        optimizer: Any = self.optimizers()
        hook = optimizer.optimizer.register_step_post_hook(
            lambda *_: moved.append(float((weights(self) - before).abs().max()))
        )
        super().optimizer_step(*args, **kwargs)
        hook.remove()
        self.longest.append(moved[-1] / _LR)


def _train(settings: dict[str, Any]) -> tuple[list[float], Tensor]:
    sync = BMUFAdam(block_size=6, **settings)
    strategy = HierarchicalStrategy(
        group_size=1, block_sync=sync, warmup_steps=0, on_nonfinite="exclude"
    )
    model = _Net()
    fit(strategy, 90, model)
    return model.longest, weights(model)


@pytest.mark.parametrize("settings", _SETTINGS, ids=str)
def test_steps_stay_short_after_an_exclusion(settings: dict[str, Any]) -> None:
    """Moments of zero with a large step count would make steps many times the learning rate."""
    results = run_ranks(_train, 2, settings)
    for steps, model in results:
        ordinary = max(steps[10:46])
        assert all(own < 2 * ordinary for own in steps[60:])
        assert all(own < 2 * ordinary for own in steps[47:] if own == own)
        assert sum(own != own for own in steps) <= 7 * (steps is results[1][0])
        assert torch.equal(model, results[0][1])
        assert bool(model.isfinite().all())
