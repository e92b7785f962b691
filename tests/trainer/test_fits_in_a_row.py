"""Fits one after the other in the same processes, as in a cross-validation or a sweep."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, weights

MakeStrategy = Callable[..., Any]

STRATEGIES: dict[str, MakeStrategy] = {
    "bmuf, overlap": partial(lh.BMUFStrategy, block_size=2, overlap=True, warmup_steps=0),
    "bmuf_gtc": partial(
        lh.BMUFGTCStrategy, group_size=2, block_size=2, density=0.2, dense_below=10, warmup_steps=0
    ),
    "psp": lh.PSPStrategy,
    "two_stage_asgd": partial(lh.TwoStageASGDStrategy, group_size=2, push_period=2),
}


class _Failing(Net):
    """Fails on every rank, with what is on its way then still there."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 3:
            raise ArithmeticError("as asked")
        return super().training_step(batch, batch_idx)


def _open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _in_a_row(make: MakeStrategy, fits: int) -> tuple[list[tuple[int, int]], list[Tensor]]:
    used, models = [], []
    for _ in range(fits):
        trainer = fit(make())
        trainer.strategy.barrier()
        models.append(weights(trainer.lightning_module))
        used.append(_open_files_and_threads())
    return used, models


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_fit_leaves_no_connections_and_threads_behind(name: str) -> None:
    """With groups of its own a fit leaves 11 files and 6 threads (bmuf_gtc), or 18 and 9 (psp).

    A thread that is about to end may be counted once. Servers' replies come when they come, so that
    models of two_stage_asgd may differ.
    """
    for used, models in run_ranks(_in_a_row, 4, STRATEGIES[name], 4):
        (_, second, _, last) = used
        assert all(after - before < 3 for before, after in zip(second, last, strict=True)), used
        if name != "two_stage_asgd":
            assert all(torch.equal(model, models[0]) for model in models[1:])


def _with_a_failure(make: MakeStrategy) -> list[tuple[bool, Tensor]]:
    """After each of two fits, one that fails, and one more: same groups as before, and weights."""
    before, found = None, []
    for model in (Net(), Net(), _Failing(), Net()):
        strategy = make()
        try:
            fit(strategy, model=model)
        except ArithmeticError:
            continue
        own = strategy.communicators.group.group
        found.append((own is before, weights(model)))
        before = own
    return found


@pytest.mark.parametrize("name", ["bmuf, overlap", "bmuf_gtc"])
def test_a_fit_that_follows_a_failure_has_groups_of_its_own(name: str) -> None:
    for found in run_ranks(_with_a_failure, 4, STRATEGIES[name]):
        assert [same for same, _ in found] == [False, True, False]
        assert all(torch.equal(model, found[0][1]) for _, model in found[1:])


def _once_more(make: MakeStrategy) -> tuple[bool, bool]:
    """Whether a Trainer keeps its groups for a second fit, and whether after one that fails."""
    strategy = make()
    trainer = fit(strategy)
    groups = [strategy.communicators.group.group]
    for model in (Net(), _Failing(), Net()):
        trainer.fit_loop.max_epochs += 1
        with suppress(ArithmeticError):
            trainer.fit(model, loader(6))
        groups.append(strategy.communicators.group.group)
    return groups[0] is groups[1] is groups[2], groups[2] is groups[3]


@pytest.mark.parametrize("name", ["bmuf, overlap", "psp", "two_stage_asgd"])
def test_the_same_trainer_has_other_groups_after_a_failure(name: str) -> None:
    assert run_ranks(_once_more, 2, STRATEGIES[name]) == [(True, False)] * 2


def _with_others() -> list[Any]:
    groups = []
    for size, minutes in ((2, 5), (1, 5), (2, 5), (2, 4)):
        strategy = lh.BMUFGTCStrategy(
            group_size=size,
            timeout=timedelta(minutes=minutes),
            warmup_steps=0,
            density=0.01,
            block_size=50,
        )
        fit(strategy)
        groups.append(strategy.communicators.group.group)
    return [groups.index(group) for group in groups]


def test_another_layout_or_time_limit_has_other_groups() -> None:
    assert run_ranks(_with_others, 4) == [[0, 1, 0, 3]] * 4


def _same_hook_on_other_ranks(*, anew: bool) -> list[tuple[bool, Any]]:
    """A state that names no group, in fits over groups of two ranks and of four.

    Args:
        anew: whether each fit has a `CommHook` of its own with the state.

    """
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=1000)
    used = []

    def hook(own: Any, bucket: GradBucket) -> Any:
        used.append(own.process_group)
        return powerSGD_hook.powerSGD_hook(own, bucket)

    sync = lh.CommHook(hook, state)
    found = []
    for group_size in (2, 4):
        if anew:
            sync = lh.CommHook(hook, state)
        used.clear()
        block_sync = lh.ModelAveraging(block_size=3) if group_size == 2 else None
        strategy = lh.HierarchicalStrategy(
            group_size=group_size, gradient_sync=sync, block_sync=block_sync, warmup_steps=0
        )
        trainer = fit(strategy)
        own = strategy.communicators.group.group
        given_and_taken = set(used) == {own} and state.process_group is None
        found.append((given_and_taken, weights(trainer.lightning_module)))
    plain = fit(lh.HierarchicalStrategy(group_size=4, warmup_steps=0))
    return [*found, (True, weights(plain.lightning_module))]


@pytest.mark.parametrize("anew", [False, True])
def test_state_of_a_hook_gets_the_group_of_each_fit(anew: bool) -> None:
    found = run_ranks(partial(_same_hook_on_other_ranks, anew=anew), 4)
    for (first, _), (second, hooked), (_, exact) in found:
        assert first and second
        torch.testing.assert_close(hooked, exact)
