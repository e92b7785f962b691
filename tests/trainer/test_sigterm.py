"""Tests that a signal on one rank stops or requeues all ranks at the next synchronisation.

All ranks save a checkpoint first.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities.exceptions import SIGTERMException

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from lightning_hier.strategies.trainer_changes import TrainerChanges
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, differences, outcome, shuffled
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    Net,
    all_equal,
    fit,
    make_trainer,
    this_rank,
)

MakeStrategy = Callable[[], Any]


class _Signalled(DropoutNet):
    """The last rank receives signals in the given step."""

    def __init__(
        self, signals: tuple[int, ...], step: int, optimizer: str = "SGD", **rest: Any
    ) -> None:
        super().__init__(optimizer, **rest)
        self.signals, self.step = signals, step

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        last = self.trainer.global_rank == self.trainer.world_size - 1
        for signum in self.signals:
            if last and self.global_step == self.step:
                os.kill(os.getpid(), signum)
        return super().training_step(batch, batch_idx)


class _Terminated(Net):
    """Rank 2 receives SIGTERM in the middle of its first block."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if this_rank() == 2 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.loss(batch)


def _terminated(
    strategy: MakeStrategy, batches: int, module: Net | None = None
) -> list[torch.Tensor]:
    model = module or _Terminated()
    with pytest.raises(SIGTERMException):
        fit(strategy(), batches, model)
    return model.seen


class _Whole(_Terminated):
    """A module for groups of one rank, which divide nothing."""

    def configure_model(self) -> None:
        pass


def _terminated_in_turn() -> tuple[list[torch.Tensor], int, int]:
    seen = _terminated(partial(BMUF_GTC, nesterov=False, of="gradient"), 8)
    in_warm_up = _terminated(partial(BMUF, warmup_steps=60), 60)
    block = lh.BMUF(block_size=4, block_momentum=0.5)
    sharded = partial(lh.HierarchicalModelParallelStrategy, group_size=1, block_sync=block)
    return seen, len(in_warm_up), len(_terminated(sharded, 8, _Whole()))


def test_all_ranks_stop_at_the_next_synchronisation_or_in_a_long_warm_up() -> None:
    """In the warm-up, all ranks check for signals every 50 steps."""
    results = run_ranks(_terminated_in_turn, 4)
    assert [(len(models), *steps) for models, *steps in results] == [(4, 50, 4)] * 4
    assert all_equal(models[-1] for models, *_ in results)


def _train(
    make_strategy: MakeStrategy,
    model: DropoutNet,
    seed: int,
    path: Path | None = None,
    **settings: Any,
) -> tuple[Any, bool]:
    """Train three epochs of five batches. Return the Trainer and whether SIGTERM ended them."""
    trainer = make_trainer(make_strategy(), max_epochs=3, **settings)
    torch.manual_seed(seed + int(os.environ["RANK"]))
    try:
        trainer.fit(model, shuffled(5), ckpt_path=path)
    except SIGTERMException:
        return trainer, True
    return trainer, False


def _stop_and_go_on(steps: tuple[int, ...], folder: Path) -> list[tuple[int, list[str]]]:
    """Stop runs in these steps and resume them. The steps that they made, and what differs."""
    uninterrupted = _Signalled((), 0)
    whole = outcome(_train(BMUF_GTC, uninterrupted, 1)[0], uninterrupted)
    results = []
    for step in steps:
        stopped = _Signalled((signal.SIGTERM,), step)
        saver = ModelCheckpoint(folder / str(step), every_n_epochs=100)
        saves: dict[str, Any] = {"callbacks": [saver], "enable_checkpointing": True}
        _, terminated = _train(BMUF_GTC, stopped, 1, **saves)
        assert terminated
        path = lh.newest_checkpoint(folder / str(step))
        assert path is not None
        resumed = _Signalled((), 0, seed=99)
        end = outcome(_train(BMUF_GTC, resumed, 50, path)[0], resumed)
        made = len(stopped.seen)
        results.append((made, differences(whole | {"seen": whole["seen"][made:]}, end)))
    return results


def test_checkpoint_is_saved_first_and_goes_on_exactly(tmp_path: Path) -> None:
    """A ModelCheckpoint saves, which has not saved before.

    Blocks have four steps and epochs five. In the first run, the ranks exchange the signal in the
    evaluation at the end of the epoch, and stop after the next step.
    """
    assert run_ranks(_stop_and_go_on, 4, (4, 7), tmp_path) == [[(6, []), (8, [])]] * 4


def _without_saver() -> list[str]:
    model = _Signalled((signal.SIGTERM,), 2)
    with pytest.warns(UserWarning, match="SIGTERM ends this run without a checkpoint"):
        assert _train(BMUF, model, 1)[1]
    return [str(len(model.seen))]


def test_run_that_saves_no_checkpoints_is_warned_of() -> None:
    assert run_ranks(_without_saver, 1) == [["4"]]


def _cluster(folder: Path) -> dict[str, str]:
    """Environment of a SLURM job with a `scontrol` that records its calls.

    It records a call only if the checkpoint exists by then.
    """
    tool = folder / "bin" / "scontrol"
    tool.parent.mkdir()
    save = f"{folder}/hpc_ckpt_1.ckpt"
    tool.write_text(f'#!/bin/sh\ntest -e {save} && echo "$@" >> {folder}/asked\n')
    tool.chmod(0o755)
    names = {"JOB_ID": "4711", "JOB_NAME": "train", "NNODES": "1", "NODEID": "0"}
    names |= {"NTASKS": "2", "NTASKS_PER_NODE": "2"}
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, **{f"SLURM_{name}": value for name, value in names.items()}}


class _Slow(AtomicCheckpointIO):
    """Writes slowly, as a busy disk does."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        time.sleep(0.3)
        super().save_checkpoint(checkpoint, path, storage_options)


def _requeued(folder: Path) -> tuple[int, list[str]]:
    os.environ["SLURM_PROCID"] = os.environ["SLURM_LOCALID"] = os.environ["RANK"]
    uninterrupted = _Signalled((), 0)
    whole = outcome(_train(BMUF, uninterrupted, 1)[0], uninterrupted)
    slurm = SLURMEnvironment(auto_requeue=True)
    settings: dict[str, Any] = {"default_root_dir": folder, "plugins": [slurm]}
    writer = {"plugins": [slurm, AsyncCheckpointIO(_Slow())]}
    stopped = _Signalled((signal.SIGUSR1, signal.SIGTERM), 6)
    _, terminated = _train(BMUF, stopped, 1, **(settings | writer))
    assert terminated
    # Lightning itself finds the checkpoint, as in the requeued job.
    resumed = _Signalled((), 0, seed=99)
    end = outcome(_train(BMUF, resumed, 50, **settings)[0], resumed)
    assert len(resumed.seen) == 7
    return len(stopped.seen), differences(whole | {"seen": whole["seen"][8:]}, end)


def test_slurm_job_is_requeued_once_after_its_asynchronous_save(tmp_path: Path) -> None:
    """One rank of two gets the signals. Files of an interrupted save do not matter."""
    left = tmp_path / "requeue_1.ckpt.ranks" / "0123" / "rank_00000.pt"
    left.parent.mkdir(parents=True)
    left.touch()
    (tmp_path / ".requeue_1.ckpt.0a1b2c.part").touch()
    results = run_ranks(_requeued, 2, tmp_path, env=_cluster(tmp_path))
    assert results == [(8, [])] * 2
    assert (tmp_path / "asked").read_text() == "requeue 4711\n"
    assert lh.newest_checkpoint(tmp_path) is not None


def test_a_requeue_leaves_other_changes_of_the_trainer() -> None:
    """It replaces a method that the session has replaced, so that no save follows an error."""
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    saved: list[Any] = []
    session, of_requeue = TrainerChanges(trainer), TrainerChanges(trainer)
    session.replace("save_checkpoint", lambda _, path: saved.append(path))
    of_requeue.replace("save_checkpoint", lambda save, path: save(f"requeue_{path}"))
    trainer.save_checkpoint("1")
    of_requeue.close()
    trainer.save_checkpoint("2")
    session.close()
    assert saved == ["requeue_1", "2"]
    assert "save_checkpoint" not in vars(trainer)
