"""Which steps synchronise what: hooks on the CPU, exact step numbers, untouched optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit


def _seen(strategy_arguments: dict[str, Any], batches: int, **settings: Any) -> list[Tensor]:
    model = Net()
    strategy = lh.HierarchicalStrategy(**{"warmup_steps": 0, **strategy_arguments})
    fit(strategy, batches, model, **settings)
    return model.seen


def _steps_with_equal_models(seen_by_rank: list[list[Tensor]]) -> list[int]:
    """Numbers, from 1, of the steps after which all ranks hold the same weights."""
    return [
        step + 1
        for step, models in enumerate(zip(*seen_by_rank, strict=True))
        if all(torch.equal(model, models[0]) for model in models)
    ]


@pytest.mark.parametrize(
    ("block_size", "warmup_steps", "equal"),
    [(3, 0, [3, 6]), (3, 2, [1, 2, 5, 8]), (1, 0, list(range(1, 9))), (50, 0, [])],
)
def test_models_meet_after_exactly_these_steps(
    block_size: int, warmup_steps: int, equal: list[int]
) -> None:
    arguments = {
        "group_size": 1,
        "block_sync": lh.BMUF(block_size=block_size),
        "warmup_steps": warmup_steps,
    }
    assert _steps_with_equal_models(run_ranks(_seen, 2, arguments, 8)) == equal


def test_accumulated_batches_are_one_step() -> None:
    arguments = {"group_size": 1, "block_sync": lh.ModelAveraging(block_size=2)}
    seen = run_ranks(_seen, 2, arguments, 9, accumulate_grad_batches=2)
    # Steps after batches 2, 4, 6, 8 and, the epoch ending, 9; models meet after the 2nd and 4th.
    # The first batch of all leaves the weights as they were, the same on every rank.
    assert _steps_with_equal_models(seen) == [1, 4, 5, 8]


def _gtc_on_cpu(accumulate: int) -> tuple[int, int, int, float]:
    """Calls and bytes of the gradients' tier."""
    strategy = lh.GTCStrategy(dense_below=20, density=0.1, warmup_steps=0)
    trainer = fit(strategy, 6, accumulate_grad_batches=accumulate)
    counts = strategy.traffic.of("group", "gradient_counts")
    across = strategy.traffic.total("across").payload_bytes
    gradients = strategy.traffic.of("group", "gradients").payload_bytes
    return trainer.global_step, counts.calls, across, gradients


def test_hook_runs_on_cpu_once_a_step_and_not_in_accumulation() -> None:
    for accumulate, steps in ((1, 6), (3, 2)):
        for global_step, calls, across, gradients in run_ranks(_gtc_on_cpu, 2, accumulate):
            assert (global_step, calls) == (steps, steps)
            assert across == 0
            # 58 values in float32, in the first step all, later the 26 of the small tensors and
            # some of the 32 others.
            assert 58 * 4 + (steps - 1) * 26 * 4 <= gradients < steps * 58 * 4


class _Scheduled(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def _optimizer_is_the_users() -> None:
    model = _Scheduled()
    places = [p.data_ptr() for p in model.parameters()]
    trainer = fit(lh.BMUFStrategy(block_size=2, warmup_steps=0), 5, model)
    (optimizer,) = trainer.optimizers
    assert type(optimizer) is torch.optim.SGD
    (schedule,) = trainer.lr_scheduler_configs
    assert schedule.scheduler.optimizer is optimizer
    assert [p.data_ptr() for p in model.parameters()] == places
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    # From the second step on the schedule's rate is 0: nothing but the synchronisations moves it.
    before_sync, after_sync, later = model.seen[0], model.seen[1], model.seen[2]
    assert not torch.equal(before_sync, after_sync)
    assert torch.equal(after_sync, later)


def test_optimizer_is_not_wrapped_and_parameters_keep_their_storage() -> None:
    run_ranks(_optimizer_is_the_users, 2)


class _TwoOptimizers(Net):
    """Steps the second optimizer every third batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(self.loss(batch))
        first.step()
        if batch_idx % 3 == 2:
            second.step()

    def configure_optimizers(self) -> Any:
        parts = (self.layers[0], self.layers[2])
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in parts]


def _two_optimizers() -> tuple[list[Tensor], list[Tensor]]:
    model = _TwoOptimizers()
    fit(lh.ModelAveragingStrategy(block_size=4, warmup_steps=0), 14, model)
    first = model.layers[0].weight.numel() + model.layers[0].bias.numel()
    return [w[:first] for w in model.seen], [w[first:] for w in model.seen]


def test_every_optimizer_counts_its_own_steps() -> None:
    results = run_ranks(_two_optimizers, 2)
    assert _steps_with_equal_models([r[0] for r in results]) == [4, 8, 12]
    assert _steps_with_equal_models([r[1] for r in results]) == [1, 2, 12, 13, 14]
