"""Ranks with different numbers of batches: one error, or they join, as a user meets them.

What the models become is compared with twins in ``tests/equivalence/test_uneven_data.py``.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer

JOIN: dict[str, Any] = {"uneven_batches": "join"}


def _rank() -> int:
    return int(os.environ["RANK"])


class _Counted(Net):
    """Validates with a metric over all ranks; `ends` are the models at the ends of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[torch.Tensor] = []

    def on_train_epoch_end(self) -> None:
        self.ends.append(self.layers[0].weight.detach().clone())


def _whole_run(folder: Path) -> tuple[list[torch.Tensor], int, list[str]]:
    """Checkpoints, early stopping and metrics over all ranks at the ends of epochs."""
    model = _Counted()
    saves = ModelCheckpoint(dirpath=folder, monitor="val_loss", save_top_k=-1)
    stops = EarlyStopping("val_loss", patience=1, min_delta=1e3)
    trainer = make_trainer(
        lh.BMUFStrategy(block_size=3, **JOIN),
        max_epochs=9,
        use_distributed_sampler=False,
        enable_checkpointing=True,
        callbacks=[saves, stops],
    )
    trainer.fit(model, loader((7, 2, 4)[_rank()], ranks=1), loader(2, ranks=1))
    return model.ends, trainer.current_epoch, sorted(path.name for path in folder.glob("*.ckpt"))


def test_all_meet_at_epoch_ends_for_validation_checkpoints_and_early_stopping(
    tmp_path: Path,
) -> None:
    results = run_ranks(_whole_run, 3, tmp_path)
    for ends, epochs, names in results:
        assert epochs == len(ends) == 2  # no loss is better by 1000 than the first
        assert len(names) == 2
        assert all(torch.equal(one, other) for one, other in zip(ends, results[0][0], strict=True))


def _resumed(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Three epochs in one run, and in two."""

    def train(epochs: int, **more: Any) -> tuple[Any, torch.Tensor]:
        model = Net()
        trainer = make_trainer(
            lh.BMUFStrategy(block_size=5, **JOIN), max_epochs=epochs, use_distributed_sampler=False
        )
        trainer.fit(model, loader((7, 3)[_rank()], ranks=1), **more)
        return trainer, model.layers[0].weight.detach()

    _, whole = train(3)
    trainer, _ = train(2)
    trainer.save_checkpoint(folder / "two.ckpt")
    _, rest = train(3, ckpt_path=folder / "two.ckpt")
    return whole, rest


def test_run_that_is_resumed_at_an_epoch_s_end_goes_on_exactly(tmp_path: Path) -> None:
    for whole, rest in run_ranks(_resumed, 2, tmp_path):
        assert torch.equal(whole, rest)


class _Signalled(Net):
    """One rank gets SIGTERM at one of its batches."""

    def __init__(self, rank: int, batch: int) -> None:
        super().__init__()
        self.where = rank, batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.where == (_rank(), batch_idx):
            os.kill(os.getpid(), signal.SIGTERM)


def _terminated(rank: int, batch: int) -> tuple[int, bool]:
    model = _Signalled(rank, batch)
    trainer = make_trainer(
        lh.BMUFStrategy(block_size=3, **JOIN), max_epochs=2, use_distributed_sampler=False
    )
    try:
        trainer.fit(model, loader((4, 20)[_rank()], ranks=1), loader(1, ranks=1))
    except SIGTERMException:
        pass
    return len(model.seen), trainer.received_sigterm


@pytest.mark.parametrize(("rank", "batch", "steps"), [(1, 8, 9), (0, 3, 6), (1, 1, 3)])
def test_signal_stops_those_that_join_at_the_same_synchronisation(
    rank: int, batch: int, steps: int
) -> None:
    """Rank 0 has four batches; blocks end after steps 3, 6, 9 of rank 1."""
    (first, told), (second, told_too) = run_ranks(_terminated, 2, rank, batch)
    assert told and told_too
    # A batch in which the signal was noted ends, but for rank 0 where it has left from there.
    assert second == steps
    assert first == min(steps, 3)


class _Untrained(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        raise AssertionError("training has begun")


def _fit(strategy: Any, batches: tuple[int, ...], **settings: Any) -> None:
    trainer = make_trainer(strategy, use_distributed_sampler=False, **settings)
    trainer.fit(_Untrained(), loader(batches[_rank()], ranks=1), loader(1, ranks=1))


def _plain() -> None:
    _fit(lh.BMUFStrategy(warmup_steps=0, block_size=50), (5, 3, 5, 5))


def _one_group() -> None:
    _fit(lh.GTCStrategy(warmup_steps=0, density=0.01), (5, 3, 5, 5))


def _inside_a_group() -> None:
    _fit(lh.BMUFGTCStrategy(group_size=2, **JOIN), (5, 3, 5, 5))


def _in_the_warm_up() -> None:
    _fit(lh.BMUFStrategy(warmup_steps=3, **JOIN), (5, 4, 5, 5), accumulate_grad_batches=2)


def _counting_steps() -> None:
    _fit(lh.BMUFStrategy(**JOIN), (5, 3, 5, 5), max_steps=7)


def _validating_often() -> None:
    _fit(lh.BMUFStrategy(**JOIN), (5, 3, 5, 5), val_check_interval=2)


def _saving_often() -> None:
    saves = ModelCheckpoint(every_n_train_steps=2)
    _fit(lh.BMUFStrategy(**JOIN), (5,) * 4, enable_checkpointing=True, callbacks=[saves])


def _looking_at_the_clock() -> None:
    _fit(lh.BMUFStrategy(**JOIN), (5,) * 4, max_time="00:01:00:00")


COUNTS = r"different numbers of training batches: 5 on ranks 0, 2, 3; 3 on rank 1"
MISTAKES: list[tuple[Callable[[], None], str]] = [
    (_plain, COUNTS + r"\. Give every rank .*, or pass uneven_batches='join'$"),
    (_one_group, COUNTS + r"\. Give every rank the same number \([^)]*\)$"),
    (_inside_a_group, r"ranks of a group have " + COUNTS + ", in groups of 2"),
    (_in_the_warm_up, r"warm-up of 3 steps .* after 2 steps: .*4 on rank 1.*to at most 2"),
    (_counting_steps, r"are synchronised only at the ends of epochs.*max_steps and min_steps"),
    (_validating_often, r"leave out val_check_interval"),
    (_saving_often, r"leave out every_n_train_steps"),
    (_looking_at_the_clock, r"max_time \(use callbacks=\[Timer"),
]


@pytest.mark.parametrize(
    ("mistake", "message"), MISTAKES, ids=[case[0].__name__.strip("_") for case in MISTAKES]
)
def test_one_clear_error_on_every_rank_before_training(
    mistake: Callable[[], None], message: str
) -> None:
    errors = run_ranks(mistake, 4, expect_failure=True)
    for error in errors:
        assert error.startswith("ValueError"), error
        assert re.search(message, error), error
    assert len(set(errors)) == 1


class _Saves(Net):
    """Saves a checkpoint after its fifth batch, unlike what it was told."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            self.trainer.save_checkpoint(Path(os.environ["FOLDER"]) / "middle.ckpt")


def _saves_in_the_middle() -> None:
    trainer = make_trainer(lh.BMUFStrategy(block_size=50, **JOIN), use_distributed_sampler=False)
    trainer.fit(_Saves(), loader((3, 8, 8)[_rank()], ranks=1))


def test_look_that_cannot_be_joined_is_one_error_that_names_who_waits(tmp_path: Path) -> None:
    errors = run_ranks(_saves_in_the_middle, 3, env={"FOLDER": str(tmp_path)}, expect_failure=True)
    for error in errors:
        assert error.startswith("OutOfStepError: some ranks wait at the end of their batches")
        assert "rank 0 at the end of its batches after 3 steps, with no batch left after 3" in error
        assert "ranks 1, 2 at the evaluation of the global model" in error
        assert "save at the ends of epochs" in error
    assert len(set(errors)) == 1


class _Stream(torch.utils.data.IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (([torch.ones(4), torch.zeros(2)]) for _ in range(self.count))


def _streams(counts: tuple[int, ...], group_size: int, uneven: Any, limit_s: float) -> None:
    strategy = lh.HierarchicalStrategy(
        group_size=group_size,
        block_sync=lh.BMUF(block_size=4),
        uneven_batches=uneven,
        timeout=timedelta(seconds=limit_s),
        warmup_steps=0,
    )
    trainer = make_trainer(strategy)
    data = torch.utils.data.DataLoader(_Stream(counts[_rank()]), batch_size=1)
    trainer.fit(Net(), data, loader(1, ranks=1))


def test_error_about_data_of_unknown_length_names_ranks_and_counts() -> None:
    """Rank 1 comes to validation after its fifth batch, the others to their block's end."""
    errors = run_ranks(_streams, 3, (9, 5, 9), 1, "error", 60.0, expect_failure=True)
    for error in errors:
        assert error.startswith("OutOfStepError"), error
        assert "rank 1 at the evaluation of the global model" in error
        assert "after 5 steps, with no batch left after 5 in this epoch" in error
        assert "ranks 0, 2 at the synchronisation of models at the end of a block" in error
        assert "end of a block after 8 steps" in error
        assert "With uneven_batches='join', ranks that run out of batches join" in error
    assert len(set(errors)) == 1


def test_rank_without_any_batch_is_named() -> None:
    errors = run_ranks(_streams, 2, (3, 0), 1, "join", 60.0, expect_failure=True)
    for error in errors:
        assert "rank 1 had no batch in this epoch, but the others up to 3" in error


@pytest.mark.parametrize("uneven", [pytest.param("error", marks=pytest.mark.slow), "join"])
def test_inside_a_group_the_rank_that_ran_out_is_named_in_limited_time(uneven: str) -> None:
    # Long enough for ranks of a busy machine, which come to their first meeting seconds apart.
    errors = run_ranks(_streams, 4, (9, 5, 9, 9), 2, uneven, 6.0, expect_failure=True)
    # What fails in the completion of a bucket comes out of DDP wrapped.
    assert all("PeerError" in error or "OutOfStepError" in error for error in errors), errors
    place = "the end of its batches, after 5" if uneven == "join" else "with no batch left after 5"
    assert re.search(f"rank 1 was last seen at .*{place}", errors[0]), errors[0]


PRESETS = [
    lh.ModelAveragingStrategy,
    lh.BMUFStrategy,
    lh.BMUFAdamStrategy,
    lh.BMUFGTCStrategy,
    lh.HierarchicalStrategy,
]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_strategy_that_averages_models_takes_the_choice(preset: Any) -> None:
    assert preset().uneven_batches == "error"
    assert preset(**JOIN).uneven_batches == "join"
    with pytest.raises(
        ValueError, match="uneven_batches must be one of 'error', 'join', got 'wait'"
    ):
        preset(uneven_batches="wait")
