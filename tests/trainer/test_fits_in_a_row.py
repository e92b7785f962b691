"""Tests several fits in the same processes, as in a cross-validation or a sweep."""

from __future__ import annotations

import gc
import os
import pickle
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

import lightning_hier as lh
from lightning_hier.comm.progress_record import PeerError
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    HIERARCHICAL,
    Net,
    all_equal,
    fit,
    fit_on_ranks,
    loader,
    weights,
)

STRATEGIES: dict[str, Any] = {
    "bmuf, overlap": partial(BMUF, block_size=2, overlap=True),
    "bmuf_gtc": partial(BMUF_GTC, block_size=2),
    "psp": lh.PSPStrategy,
}


class _Failing(Net):
    """Fails on every rank, while an update may be in flight."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 3:
            raise ArithmeticError("as asked")
        return self.loss(batch)


def _open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _in_a_row(name: str) -> tuple[list[tuple[int, int]], list[Tensor]]:
    used, models = [], []
    for _ in range(3):
        trainer = fit(STRATEGIES[name]())
        trainer.strategy.barrier()
        models.append(weights(trainer.lightning_module))
        used.append(_open_files_and_threads())
    return used, models


def test_a_fit_leaves_no_connections_and_threads_behind() -> None:
    """Later fits reuse the process groups of the first one.

    A fit with new groups would leave 11 files and 6 threads (bmuf_gtc), or 18 and 9 (psp). A thread
    that is about to end may still be counted.
    """
    for by_name in run_ranks(_for_each, 4, _in_a_row, ["bmuf_gtc", "psp"]):
        for (_, second, last), models in by_name:
            assert all(after - before < 3 for before, after in zip(second, last, strict=True))
            assert all_equal(models)


def _for_each(function: Any, names: list[str]) -> list[Any]:
    return [function(name) for name in names]


def _once_more(name: str) -> tuple[bool, bool]:
    """Whether a Trainer keeps its groups for later fits, and whether it keeps them after an error.

    The first two fits succeed, the third one fails. Under servers, a rank may learn of the error of
    the other one before it raises its own.
    """
    trainer = fit(STRATEGIES[name]())
    strategy: Any = trainer.strategy
    groups = [strategy.communicators.group.group]
    for model in (Net(), _Failing(), Net()):
        trainer.fit_loop.max_epochs += 1
        with suppress(ArithmeticError, PeerError):
            trainer.fit(model, loader(6))
        groups.append(strategy.communicators.group.group)
    return groups[0] is groups[1] is groups[2], groups[2] is groups[3]


def test_the_same_trainer_has_new_groups_after_a_failure() -> None:
    results = run_ranks(_for_each, 2, _once_more, ["bmuf, overlap", "psp"])
    assert results == [[(True, False)] * 2] * 2


def _copied(name: str) -> list[bool]:
    trainer = fit(STRATEGIES[name]())
    same = []
    for copied in (deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        trained, again = trainer.lightning_module, copied.lightning_module
        predicted = [t.predict(m, loader(2)) for t, m in ((trainer, trained), (copied, again))]
        same.append(all(map(torch.equal, *predicted)))
        same.append(copied.strategy._settings() == trainer.strategy._settings())
    return same


def test_a_trainer_can_be_copied_after_fit() -> None:
    assert run_ranks(_for_each, 2, _copied, ["bmuf_gtc", "psp"]) == [[[True] * 4] * 2] * 2


def _same_hook_on_other_ranks() -> list[tuple[bool, Tensor]]:
    """Use a state without a group in two fits, over groups of two ranks and of four.

    Returns:
        For each fit, whether the hook got its group and the state lost it again, and the weights.

    """
    state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=1000)
    used = []

    def hook(hook_state: Any, bucket: GradBucket) -> Any:
        used.append(hook_state.process_group)
        return powerSGD_hook.powerSGD_hook(hook_state, bucket)

    sync = lh.CommHook(hook, state)
    results = []
    for size, block_sync in ((2, lh.ModelAveraging(block_size=3)), (4, None)):
        used.clear()
        strategy = HIERARCHICAL(group_size=size, gradient_sync=sync, block_sync=block_sync)
        trainer = fit(strategy)
        group = trainer.strategy.communicators.group.group
        given_and_taken = set(used) == {group} and state.process_group is None
        results.append((given_and_taken, weights(trainer.lightning_module)))
    return results


def test_state_of_a_hook_gets_the_group_of_each_fit() -> None:
    exact = fit_on_ranks(4, partial(HIERARCHICAL, group_size=4))[0].weights
    for (first, _), (second, hooked) in run_ranks(_same_hook_on_other_ranks, 4):
        assert first and second
        torch.testing.assert_close(hooked, exact)
