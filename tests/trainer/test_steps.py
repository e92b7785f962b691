"""Tests the calls of the gradient hook, and that a fit changes neither optimizer nor module.

``tests/equivalence`` tests which steps synchronise.
"""

from __future__ import annotations

from typing import Any

import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF, GTC, Net, fit, loader, make_trainer


def _gtc_on_cpu() -> tuple[int, int, float, float]:
    """Number of steps, calls of the hook, bytes across groups, and bytes of gradients."""
    strategy = lh.GTCStrategy(dense_below=20, density=0.1, warmup_steps=0)
    trainer = fit(strategy, 6, accumulate_grad_batches=3)
    counts = strategy.traffic.of("group", "gradient_counts")
    across = strategy.traffic.total("across").payload_bytes
    gradients = strategy.traffic.of("group", "gradients").payload_bytes
    return trainer.global_step, counts.calls, across, gradients


def test_hook_runs_on_cpu_once_a_step_and_not_in_accumulation() -> None:
    for steps, calls, across, gradients in run_ranks(_gtc_on_cpu, 2):
        assert steps == calls == 2
        assert across == 0
        # The first step sends all 58 values in float32. Later steps send the 26 values of the
        # small tensors and some of the other 32.
        assert 58 * 4 + 26 * 4 <= gradients < 2 * 58 * 4


class _Scheduled(Net):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def _optimizer_is_the_users() -> None:
    model = _Scheduled()
    places = [p.data_ptr() for p in model.parameters()]
    trainer = fit(BMUF(block_size=2), 5, model)
    (optimizer,) = trainer.optimizers
    assert type(optimizer) is torch.optim.SGD
    (schedule,) = trainer.lr_scheduler_configs
    assert schedule.scheduler.optimizer is optimizer
    assert [p.data_ptr() for p in model.parameters()] == places
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    # From the second step on, the learning rate is 0, so only synchronisations change the model.
    before_sync, after_sync, later = model.seen[0], model.seen[1], model.seen[2]
    assert not torch.equal(before_sync, after_sync)
    assert torch.equal(after_sync, later)


def test_optimizer_is_not_wrapped_and_parameters_keep_their_storage() -> None:
    run_ranks(_optimizer_is_the_users, 2)


def _leftovers() -> list[str]:
    """Fit twice with one Trainer. Return the names of hooks and methods that are left each time."""
    module, trainer = Net(), make_trainer(GTC(find_unused_parameters=True))
    left = []
    for epochs in (1, 2):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module, loader(3), loader(1))
        left += [n for n, p in module.named_parameters() if p._post_accumulate_grad_hooks]
        left += [n for n in ("run",) if n in trainer.fit_loop.epoch_loop.val_loop.__dict__]
        left += [f"missing step {epochs}"] if trainer.global_step != 3 * epochs else []
    return left


def test_nothing_stays_attached() -> None:
    assert run_ranks(_leftovers, 1) == [[]]
