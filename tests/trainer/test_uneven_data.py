"""Tests ranks with different numbers of batches: one error, or `uneven_batches="join"`.

``tests/equivalence/test_uneven_data.py`` compares the resulting models with twins.
"""

from __future__ import annotations

import os
import re
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    GTC,
    HIERARCHICAL,
    Net,
    Untrained,
    all_equal,
    loader,
    make_trainer,
    this_rank,
    weights,
)
from tests.trainer.mistakes import Mistakes, check_errors, errors_by_rank

JOIN: dict[str, Any] = {"uneven_batches": "join"}
_JOINING = partial(lh.BMUFStrategy, **JOIN)


def _fit(
    strategy: Any, batches: tuple[int, ...], model: Any = None, path: Any = None, **settings: Any
) -> Any:
    """Train with the given number of batches on each rank. The default module must not train."""
    trainer = make_trainer(strategy, use_distributed_sampler=False, **settings)
    data = loader(batches[this_rank()], ranks=1)
    trainer.fit(model or Untrained(), data, loader(2, ranks=1), ckpt_path=path)
    return trainer


class _Counted(Net):
    """Validates with a metric over all ranks, and notes the models at the ends of epochs."""

    def on_train_epoch_end(self) -> None:
        self.notes.append(weights(self))


def _whole_run(folder: Path) -> tuple[list[torch.Tensor], int, int]:
    """Train with checkpoints, early stopping and a metric over all ranks at the ends of epochs."""
    model = _Counted()
    saves = ModelCheckpoint(dirpath=folder, monitor="val_loss", save_top_k=-1)
    stops = EarlyStopping("val_loss", patience=1, min_delta=1e3)
    settings: dict[str, Any] = {"enable_checkpointing": True, "callbacks": [saves, stops]}
    trainer = _fit(_JOINING(block_size=3), (7, 2, 4), model, max_epochs=9, **settings)
    return model.notes, trainer.current_epoch, len(list(folder.glob("*.ckpt")))


def test_ranks_wait_at_epoch_ends_for_validation_checkpoints_and_early_stopping(
    tmp_path: Path,
) -> None:
    results = run_ranks(_whole_run, 3, tmp_path)
    for ends, epochs, saved in results:
        assert epochs == len(ends) == 2  # no loss is better by 1000 than the first
        assert saved == 2
        assert all(torch.equal(one, other) for one, other in zip(ends, results[0][0], strict=True))


def _resumed(folder: Path) -> list[torch.Tensor]:
    """Three epochs in one run, and in two runs."""
    models, path = [Net(), Net(), Net()], folder / "two.ckpt"
    _fit(_JOINING(block_size=5), (7, 3), models[0], max_epochs=3)
    _fit(_JOINING(block_size=5), (7, 3), models[1], max_epochs=2).save_checkpoint(path)
    _fit(_JOINING(block_size=5), (7, 3), models[2], path, max_epochs=3)
    return [weights(models[0]), weights(models[2])]


def test_resume_at_the_end_of_an_epoch_is_exact(tmp_path: Path) -> None:
    for ends in run_ranks(_resumed, 2, tmp_path):
        assert all_equal(ends)


class _Signalled(Net):
    """One rank gets SIGTERM at one batch."""

    def __init__(self, rank: int, batch: int) -> None:
        super().__init__()
        self.where = rank, batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.where == (this_rank(), batch_idx):
            os.kill(os.getpid(), signal.SIGTERM)


def _terminated(rank: int, batch: int) -> int:
    model = _Signalled(rank, batch)
    with pytest.raises(SIGTERMException):
        _fit(_JOINING(block_size=3), (4, 20), model, max_epochs=2)
    return len(model.seen)


@pytest.mark.parametrize(("rank", "batch", "steps"), [(1, 8, 9), (0, 3, 6), (1, 1, 3)])
def test_signal_stops_those_that_join_at_the_same_synchronisation(
    rank: int, batch: int, steps: int
) -> None:
    """Rank 0 has four batches. Blocks end after steps 3, 6 and 9 of rank 1.

    A rank finishes the batch in which it stops. Rank 0 does not if it has joined, because it joins
    within its last batch.
    """
    assert run_ranks(_terminated, 2, rank, batch) == [min(steps, 3), steps]


COUNTS = r"different numbers of training batches: 5 on ranks 0, 2, 3; 3 on rank 1"
ONE_SHORT, EVEN = (5, 3, 5, 5), (5, 5, 5, 5)
MISTAKES: Mistakes = {
    "plain": (
        lambda: _fit(BMUF(), ONE_SHORT),
        COUNTS + r"\. Give every rank .*, or pass uneven_batches='join'$",
    ),
    "one_group": (
        lambda: _fit(GTC(), ONE_SHORT),
        COUNTS + r"\. Give every rank the same number \([^)]*\)$",
    ),
    "inside_a_group": (
        lambda: _fit(BMUF_GTC(**JOIN), ONE_SHORT),
        r"ranks of a group have " + COUNTS + ", in groups of 2",
    ),
    "in_the_warm_up": (
        lambda: _fit(_JOINING(warmup_steps=3), (5, 4, 5, 5), accumulate_grad_batches=2),
        r"warm-up of 3 steps .* after 2 steps: .*4 on rank 1.*to at most 2",
    ),
    "counting_steps": (
        lambda: _fit(_JOINING(), ONE_SHORT, max_steps=7),
        r"are synchronised only at the ends of epochs.*max_steps and min_steps",
    ),
    "validating_often": (
        lambda: _fit(_JOINING(), ONE_SHORT, val_check_interval=2),
        r"leave out val_check_interval",
    ),
    "validating_after_every_batch": (  # 1 is equal to 1.0, which means a whole epoch
        lambda: _fit(_JOINING(), ONE_SHORT, val_check_interval=1),
        r"leave out val_check_interval",
    ),
    "saving_often": (
        lambda: _fit(
            _JOINING(),
            EVEN,
            enable_checkpointing=True,
            callbacks=[ModelCheckpoint(every_n_train_steps=2)],
        ),
        r"leave out every_n_train_steps",
    ),
    "looking_at_the_clock": (
        lambda: _fit(_JOINING(), EVEN, max_time="00:01:00:00"),
        r"max_time \(use callbacks=\[Timer",
    ),
}


@pytest.fixture(scope="module")
def errors() -> list[dict[str, str]]:
    return errors_by_rank(__name__)


@pytest.mark.parametrize("name", MISTAKES)
def test_one_clear_error_on_every_rank_before_training(
    name: str, errors: list[dict[str, str]]
) -> None:
    check_errors([rank[name] for rank in errors], MISTAKES[name][1])


class _Saves(Net):
    """Saves a checkpoint after its fifth batch, which joining ranks do not support."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            self.trainer.save_checkpoint(Path(os.environ["FOLDER"]) / "middle.ckpt")


def _saves_in_the_middle() -> None:
    _fit(_JOINING(block_size=50), (3, 8, 8), _Saves())


def test_save_that_cannot_be_joined_is_one_error_that_names_waiting_ranks(tmp_path: Path) -> None:
    errors = run_ranks(_saves_in_the_middle, 3, env={"FOLDER": str(tmp_path)}, expect_failure=True)
    check_errors(errors, "", kind="OutOfStepError: some ranks wait at the end of their batches")
    for text in (
        "rank 0 at the end of its batches after 3 steps, with no batch left after 3",
        "ranks 1, 2 at the evaluation of the global model",
        "save at the ends of epochs",
    ):
        assert text in errors[0]


class _Stream(IterableDataset):
    """Batches without a known number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (([torch.ones(4), torch.zeros(2)]) for _ in range(self.count))


def _streams(
    counts: tuple[int, ...], group_size: int, uneven: Any, limit_s: float, block_size: int = 4
) -> None:
    strategy = HIERARCHICAL(
        group_size=group_size,
        block_sync=lh.BMUF(block_size=block_size),
        uneven_batches=uneven,
        timeout=timedelta(seconds=limit_s),
    )
    data = DataLoader(_Stream(counts[this_rank()]), batch_size=1)
    make_trainer(strategy).fit(Net(), data, loader(1, ranks=1))


@pytest.mark.parametrize("block_size", [3, 4, 50])
def test_error_about_data_of_unknown_length_names_ranks_and_counts(block_size: int) -> None:
    """Rank 1 starts validation after its fifth batch. The others wait at the end of their block."""
    streams = (9, 5, 9), 1, "error", 60.0, block_size
    errors = run_ranks(_streams, 3, *streams, expect_failure=True)
    check_errors(errors, "rank 1 at the evaluation of the global model", kind="OutOfStepError")
    assert "after 5 steps, with no batch left after 5 in this epoch" in errors[0]
    assert "ranks 0, 2 at" in errors[0]
    if block_size == 4:
        assert "ranks 0, 2 at the synchronisation of models at the end of a block" in errors[0]
        assert "end of a block after 8 steps" in errors[0]
        assert "With uneven_batches='join', ranks that run out of batches join" in errors[0]
    assert "same number of batches" in errors[0]


def test_rank_without_any_batch_is_named() -> None:
    for error in run_ranks(_streams, 2, (3, 0), 1, "join", 60.0, expect_failure=True):
        assert "rank 1 had no batch in this epoch, but the others up to 3" in error


@pytest.mark.parametrize("uneven", [pytest.param("error", marks=pytest.mark.slow), "join"])
def test_inside_a_group_the_rank_that_ran_out_is_named_in_limited_time(uneven: str) -> None:
    # On a busy machine, ranks start their first collective seconds apart.
    errors = run_ranks(_streams, 4, (9, 5, 9, 9), 2, uneven, 6.0, expect_failure=True)
    # DDP wraps an error in the completion of a bucket.
    assert all("PeerError" in error or "OutOfStepError" in error for error in errors), errors
    place = "the end of its batches, after 5" if uneven == "join" else "with no batch left after 5"
    assert re.search(f"rank 1 was last seen at .*{place}", errors[0]), errors[0]
