"""Wherever ranks meet next, a killed or stopped rank is named on all others, in limited time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.trainer.fitting import Net, loader, make_trainer
from tests.waiting import leave_mark, wait_for_marks

# Ranks of a busy machine come to their first meeting seconds apart.
LIMIT = timedelta(seconds=6)


class _Lost(Net):
    """One rank gets a signal when it comes to a hook for the second time."""

    def __init__(self, rank: int, hook: str, number: signal.Signals, marks: Path) -> None:
        super().__init__(batchnorm=True)
        self.calls = 0

        def lose(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == (2 if hook == "training_step" else 1) and _rank() == rank:
                leave_mark(marks, "lost", str(os.getpid()))
                os.kill(os.getpid(), number)
            return own(*args, **kwargs)

        own = getattr(self, hook)
        setattr(self, hook, lose)


def _rank() -> int:
    return int(os.environ["RANK"])


def _train(
    folder: Path,
    make: Callable[[], Any],
    rank: int,
    hook: str,
    number: signal.Signals,
    **settings: Any,
) -> None:
    """The lowest rank that is left ends the stopped one when all others have failed."""
    trainer = make_trainer(make(), **settings)
    model = _Lost(rank, hook, number, folder)
    path = str(folder / "whole.ckpt") if (folder / "whole.ckpt").exists() else None
    try:
        trainer.fit(model, loader(5), loader(1), ckpt_path=path)
    finally:
        leave_mark(folder, str(_rank()))
        left = [own for own in range(trainer.world_size) if own != rank]
        if _rank() == left[0]:
            wait_for_marks(folder, *map(str, left))
            with suppress(ProcessLookupError):  # it was killed
                os.kill(int((folder / "lost").read_text()), signal.SIGKILL)


def _check(
    folder: Path, make: Callable[[], Any], ranks: int, lost: int, *more: Any, **settings: Any
) -> dict[int, str]:
    """All other ranks raise a PeerError that names the lost one."""
    outcomes = rank_outcomes(_train, ranks, folder, make, lost, *more, **settings)
    errors = {own.rank: str(own.error) for own in outcomes if own.rank != lost}
    for outcome in outcomes:
        print(
            outcome.rank,
            outcome.error,
            outcome.traceback[-1500:] if "Peer" not in str(outcome.error) else "",
        )
    for rank, error in errors.items():
        assert error.startswith("PeerError"), (rank, error)
        assert f"rank {lost}" in error or f"{lost} did not take part" in error, (rank, error)
    return errors


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
bmuf = partial(lh.BMUFStrategy, block_size=4, timeout=LIMIT, warmup_steps=0)
tiers = partial(
    lh.BMUFGTCStrategy,
    group_size=2,
    block_size=4,
    dense_below=0,
    timeout=LIMIT,
    warmup_steps=0,
    density=0.01,
)


@pytest.mark.parametrize("number", [KILL, STOP])
def test_in_the_warm_up(number: signal.Signals, tmp_path: Path) -> None:
    """Where DDP reduces over all ranks."""
    _check(tmp_path, partial(tiers, warmup_steps=4), 4, 3, "training_step", number)


def test_in_a_step_of_a_group(tmp_path: Path) -> None:
    """Its group's other rank finds out at the step, the other group at the end of its block."""
    for error in _check(tmp_path, tiers, 4, 2, "training_step", KILL).values():
        assert "because rank 2 did not take part" in error


def test_at_the_end_of_a_block(tmp_path: Path) -> None:
    """In groups of two; the ranks that exchange between groups are not the only ones to know."""
    make = partial(
        lh.BMUFGTCStrategy, group_size=2, block_size=2, timeout=LIMIT, warmup_steps=0, density=0.01
    )
    for error in _check(tmp_path, make, 4, 3, "on_before_zero_grad", STOP).values():
        assert "because rank 3 did not take part" in error


def test_while_blocks_overlap(tmp_path: Path) -> None:
    make = partial(lh.BMUFStrategy, block_size=1, overlap=True, timeout=LIMIT, warmup_steps=0)
    _check(tmp_path, make, 3, 1, "training_step", KILL)


@pytest.mark.parametrize("number", [KILL, STOP])
def test_at_a_save(number: signal.Signals, tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=3)
    settings = {"enable_checkpointing": True, "callbacks": [save]}
    errors = _check(tmp_path, tiers, 4, 1, "on_save_checkpoint", number, **settings)
    assert all("a save of a checkpoint failed because rank 1" in own for own in errors.values())


@pytest.mark.parametrize(
    ("hook", "number"), [("validation_step", STOP), ("on_validation_epoch_end", KILL)]
)
def test_in_validation(hook: str, number: signal.Signals, tmp_path: Path) -> None:
    """Where the next collective reduces a metric, or is the one after validation."""
    _check(tmp_path, tiers, 4, 2, hook, number, num_sanity_val_steps=0)


def test_at_the_end_of_fit(tmp_path: Path) -> None:
    errors = _check(tmp_path, bmuf, 3, 2, "on_train_epoch_end", KILL)
    assert all("the end of training" in own for own in errors.values())


def _save(folder: Path, make: Callable[[], Any]) -> None:
    trainer = make_trainer(make(), max_steps=3, max_epochs=-1)
    trainer.fit(Net(batchnorm=True), loader(5))
    trainer.save_checkpoint(folder / "whole.ckpt")


def test_at_a_resume(tmp_path: Path) -> None:
    run_ranks(_save, 4, tmp_path, tiers)
    _check(tmp_path, tiers, 4, 1, "on_load_checkpoint", KILL)


class _OwnCollective(Net):
    """Has a collective of its own in a hook, as metrics of other packages have."""

    def on_train_epoch_end(self) -> None:
        if _rank() == 1:
            os.kill(os.getpid(), KILL)
        dist.all_reduce(torch.zeros(1))


def _train_own() -> None:
    make_trainer(bmuf()).fit(_OwnCollective(), loader(2))


def test_in_a_collective_of_the_user() -> None:
    first, _, third = rank_outcomes(_train_own, 3)
    for outcome in (first, third):
        assert outcome.error is not None and outcome.error.startswith("PeerError"), outcome.error
        assert "because rank 1 did not take part" in outcome.error


def _refuse_on_rank_one() -> None:
    """As an all-reduce does on a device that has no memory left."""
    reduce = dist.all_reduce

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if _rank() == 1 and kwargs.get("async_op"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reduce(*args, **kwargs)

    dist.all_reduce = refuse
    make_trainer(lh.HierarchicalStrategy(group_size="world", timeout=LIMIT, warmup_steps=0)).fit(
        Net(), loader(4)
    )


def test_error_of_one_rank_is_raised_as_it_is_and_names_it_on_the_others() -> None:
    first, second, third = rank_outcomes(_refuse_on_rank_one, 3)
    assert second.error == "OutOfMemoryError: CUDA out of memory"
    assert (
        "raised in the collective 'gradients' of ranks [0, 1, 2], a step after" in second.traceback
    )
    for outcome in (first, third):
        assert outcome.error is not None and outcome.error.startswith("PeerError"), outcome.error
        assert "because rank 1 did not take part" in outcome.error
