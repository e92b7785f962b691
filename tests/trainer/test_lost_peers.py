"""Tests that all other ranks name a lost rank, in limited time, wherever they wait for it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint

import lightning_hier as lh
from examples.loopback import free_port
from tests.ranks import RankOutcome, rank_outcomes
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    HIERARCHICAL,
    Net,
    fit,
    fit_on_ranks,
    fitted,
    this_rank,
)
from tests.waiting import leave_mark, wait_for_marks

# On a busy machine, ranks start their first collective seconds apart.
LIMIT = timedelta(seconds=6)
KILL, STOP, RAISE = signal.SIGKILL, signal.SIGSTOP, None
ONE_TIER = partial(BMUF, timeout=LIMIT)
TIERS = partial(BMUF_GTC, timeout=LIMIT)


class _Lost(Net):
    """One rank gets a signal, or raises an error, at one call of a hook."""

    def __init__(self, rank: int, number: Any, hook: str, at: int, marks: Path) -> None:
        super().__init__(batchnorm=True)
        self.calls = 0

        def lose(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == at and this_rank() == rank:
                if number is None:
                    raise ValueError("this rank's own mistake")
                leave_mark(marks, "lost", str(os.getpid()))
                os.kill(os.getpid(), number)
            return original(*args, **kwargs)

        original = getattr(self, hook)
        setattr(self, hook, lose)


def _train(folder: Path, lost: int, strategy: Any, model: Any, **settings: Any) -> None:
    """Train. The lowest remaining rank kills a stopped rank when all others have failed."""
    try:
        fitted(strategy, model, **settings)
    finally:
        leave_mark(folder, str(this_rank()))
        left = [rank for rank in range(int(os.environ["WORLD_SIZE"])) if rank != lost]
        if this_rank() == left[0]:
            wait_for_marks(folder, *map(str, left))
            with suppress(OSError, ProcessLookupError):  # it was killed, or has raised an error
                os.kill(int((folder / "lost").read_text()), signal.SIGKILL)


def _outcomes(
    folder: Path,
    strategy: Any,
    ranks: int,
    lost: int,
    number: Any,
    hook: str = "training_step",
    at: int = 1,
    batches: int = 5,
    **settings: Any,
) -> list[RankOutcome]:
    """Train, and check that all other ranks raise a PeerError that names the lost rank."""
    model = partial(_Lost, lost, number, hook, at, folder)
    settings = {"batches": batches, "validate": 1, **settings}
    outcomes = rank_outcomes(_train, ranks, folder, lost, strategy, model, **settings)
    for outcome in outcomes:
        if outcome.rank != lost:
            assert outcome.error is not None and outcome.error.startswith("PeerError"), (
                outcome.traceback
            )
            assert f"rank {lost}" in outcome.error or f"{lost} did not take part" in outcome.error
    return outcomes


def _errors(outcomes: list[RankOutcome], lost: int) -> dict[int, str]:
    return {outcome.rank: str(outcome.error) for outcome in outcomes if outcome.rank != lost}


def test_in_the_warm_up(tmp_path: Path) -> None:
    """In the warm-up, DDP reduces gradients over all ranks."""
    _outcomes(tmp_path, partial(TIERS, warmup_steps=4), 4, 3, KILL, at=2)


def test_in_a_step_of_a_group(tmp_path: Path) -> None:
    """The same group detects the loss in the step, and the other group at the end of its block."""
    outcomes = _outcomes(tmp_path, TIERS, 4, 3, STOP, at=6, batches=12, validate=0)
    errors = _errors(outcomes, 3)
    assert (
        "a step after the synchronisation of models at the end of a block failed because rank 3 "
        "did not take part"
    ) in errors[2]
    for rank in (0, 1):
        assert "end of a block failed" in errors[rank]
        assert "3 did not take part" in errors[rank]


def test_at_the_end_of_a_block_of_groups(tmp_path: Path) -> None:
    """All ranks name the lost rank, not only those that communicate between groups."""
    strategy = partial(TIERS, block_size=2, overlap=True)
    outcomes = _outcomes(tmp_path, strategy, 4, 3, KILL, "on_before_zero_grad")
    for error in _errors(outcomes, 3).values():
        assert "because rank 3 did not take part" in error


def test_at_a_save(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path / "saves", every_n_train_steps=3)
    settings = {"enable_checkpointing": True, "callbacks": [save]}
    outcomes = _outcomes(tmp_path, TIERS, 4, 1, KILL, "on_save_checkpoint", **settings)
    for error in _errors(outcomes, 1).values():
        assert "a save of a checkpoint failed because rank 1" in error


def test_in_validation(tmp_path: Path) -> None:
    """The next collective reduces a metric."""
    _outcomes(tmp_path, TIERS, 4, 2, KILL, "validation_step", num_sanity_val_steps=0)


def test_at_the_end_of_fit(tmp_path: Path) -> None:
    outcomes = _outcomes(tmp_path, ONE_TIER, 3, 2, KILL, "on_train_epoch_end")
    assert all("the end of training" in error for error in _errors(outcomes, 2).values())


def test_at_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "whole.ckpt"
    model = partial(Net, batchnorm=True)
    fit_on_ranks(4, TIERS, model, 5, max_steps=3, max_epochs=-1, save=path)
    _outcomes(tmp_path, TIERS, 4, 1, KILL, "on_load_checkpoint", ckpt_path=path)


def _train_with_store_on_rank_zero(port: int, folder: Path, number: int, limit: timedelta) -> None:
    """As with Lightning's launcher: the store ends with the process of rank 0."""
    os.environ["MASTER_PORT"] = str(port)
    model = partial(_Lost, 0, number, "training_step", 7, folder)
    _train(folder, 0, partial(BMUF, timeout=limit), model, batches=12)


@pytest.mark.parametrize(
    ("number", "limit"),
    # A limit that a killed rank does not reach: the others notice its loss before.
    [(KILL, timedelta(minutes=10)), (STOP, LIMIT)],
)
def test_while_rank_zero_hosts_the_store(tmp_path: Path, number: int, limit: timedelta) -> None:
    """Rank 2 exchanges data with rank 0 only. A stopped rank 0 does not answer, without an end."""
    env = {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    lost = tmp_path, number, limit
    outcomes = rank_outcomes(_train_with_store_on_rank_zero, 3, free_port(), *lost, env=env)
    for error in _errors(outcomes, 0).values():
        assert error.startswith("PeerError") and "rank 0 or its host is gone" in error, error


class _Alone(Callback):
    """Communicates on one rank only, after a batch in which no rank communicates."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if args[-1] == 3:
            pl_module.log("loss", 1.0, on_step=True, sync_dist=True)


class _Asking(Callback):
    """Broadcasts on one rank only. Its first message is as long as that of a block's end."""

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if args[-1] == 3:
            trainer.strategy.broadcast("a value")


def _callback_on_one_rank(callback: Callback, strategy: Any) -> None:
    callbacks = [callback] if this_rank() == 1 else []
    fitted(strategy, Net, 12, callbacks=callbacks)


SAMPLES = partial(
    HIERARCHICAL,
    group_size=1,
    block_sync=lh.ModelAveraging(block_size=6, weighting="samples"),
    timeout=LIMIT,
)


@pytest.mark.parametrize(
    ("callback", "strategy", "place"),
    [
        (_Alone(), partial(ONE_TIER, block_size=6), "a reduction over all ranks"),
        (_Asking(), partial(ONE_TIER, block_size=6), "a broadcast"),
        (_Asking(), SAMPLES, "a broadcast"),
    ],
    ids=["reduction", "broadcast", "broadcast, samples"],
)
def test_a_callback_on_one_rank_is_an_error_that_names_both_places(
    callback: Callback, strategy: Any, place: str
) -> None:
    for outcome in rank_outcomes(_callback_on_one_rank, 3, callback, strategy):
        error = str(outcome.error)
        assert error.startswith("PeerError") and "the ranks are in different collectives" in error
        assert f"rank 1 at {place}" in error, error
        assert "ranks 0, 2 at the synchronisation of models at the end of a block" in error, error


def test_at_the_end_of_a_block_also_if_errors_save_a_checkpoint(tmp_path: Path) -> None:
    save = OnExceptionCheckpoint(tmp_path / "saves")
    settings = {"enable_checkpointing": True, "callbacks": [save], "batches": 12, "validate": 0}
    outcomes = _outcomes(tmp_path, ONE_TIER, 3, 1, RAISE, at=7, **settings)
    assert outcomes[1].error == "ValueError: this rank's own mistake"
    for error in _errors(outcomes, 1).values():
        assert "end of a block failed because rank 1 did not take part" in error
        assert "rank 1 was last seen at the synchronisation of models" in error
        assert "had failed with ValueError: this rank's" in error
        assert "See the log of rank 1" in error and "number of batches" not in error
    assert not (tmp_path / "saves").exists()


class _Raising(Net):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            raise ValueError("this rank's own mistake")


def _all_fail(folder: Path) -> None:
    save = OnExceptionCheckpoint(folder)
    fitted(ONE_TIER, _Raising, 5, enable_checkpointing=True, callbacks=[save])


def test_an_error_of_all_ranks_saves_a_checkpoint(tmp_path: Path) -> None:
    for outcome in rank_outcomes(_all_fail, 2, tmp_path):
        assert outcome.error == "ValueError: this rank's own mistake"
    assert [path.suffix for path in tmp_path.glob("*.ckpt")] == [".ckpt"]


class _OwnCollective(Net):
    """Calls a collective in a hook, as metrics of other packages do."""

    def on_train_epoch_end(self) -> None:
        if this_rank() == 1:
            os.kill(os.getpid(), KILL)
        dist.all_reduce(torch.zeros(1))


def test_in_a_collective_of_the_user() -> None:
    first, _, third = rank_outcomes(fitted, 3, ONE_TIER, _OwnCollective, 2)
    for outcome in (first, third):
        assert outcome.error is not None and outcome.error.startswith("PeerError"), outcome.error
        assert "because rank 1 did not take part" in outcome.error


def _refuse_on_rank_one() -> None:
    """Train while the all-reduce of rank 1 fails, as on a device without free memory."""
    reduce = dist.all_reduce

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if this_rank() == 1 and kwargs.get("async_op"):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return reduce(*args, **kwargs)

    dist.all_reduce = refuse
    fit(HIERARCHICAL(group_size="world", timeout=LIMIT), 4)


def test_error_of_one_rank_is_raised_as_it_is_and_names_it_on_the_others() -> None:
    first, second, third = rank_outcomes(_refuse_on_rank_one, 3)
    assert second.error == "OutOfMemoryError: CUDA out of memory"
    assert (
        "raised in the collective 'gradients' of ranks [0, 1, 2], a step after" in second.traceback
    )
    for outcome in (first, third):
        assert outcome.error is not None and outcome.error.startswith("PeerError"), outcome.error
        assert "because rank 1 did not take part" in outcome.error
