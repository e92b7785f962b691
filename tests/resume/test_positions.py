"""Tests where a run is saved: each position resumes exactly, is refused or is called not exact."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
)
from lightning.pytorch.utilities import CombinedLoader
from lightning_utilities.core import rank_zero
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from tests.ranks import run_ranks
from tests.resume.runs import (
    ROWS,
    DropoutNet,
    NoisyData,
    shuffled,
    stop_and_go_on,
    validation,
)
from tests.trainer.fitting import BMUF, make_trainer, this_rank

NOT_EXACT = "this resume is not exact: "


@contextmanager
def _lines() -> Iterator[list[str]]:
    """Collect the lines of the log and the warnings about resuming."""
    lines: list[str] = []
    handler, log = logging.Handler(), rank_zero.log
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lines
    log.removeHandler(handler)
    lines += [str(warning.message) for warning in caught]
    lines[:] = [line for line in lines if "exact" in line]


Case = tuple[str, int, dict[str, Any]]


def _case(hook: str, number: int, **settings: Any) -> Case:
    """A run that is saved at a call of a hook, with settings of `stop_and_go_on`."""
    return hook, number, {"max_epochs": 2, **settings}


def _run(cases: str, folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Differences of the resumed run to the uninterrupted one, and its lines, for each case."""
    results = {}
    for index, (name, (hook, number, settings)) in enumerate(globals()[cases].items()):
        (subfolder := folder / str(index)).mkdir(exist_ok=True)
        with _lines() as lines:
            apart = stop_and_go_on(BMUF, hook, number, subfolder, **settings)
        results[name] = apart, lines
    return results


def _check_exact(cases: str, folder: Path) -> None:
    """Check the cases of a dictionary of this module, which is too local to be sent to ranks."""
    for rank, results in enumerate(run_ranks(_run, 2, cases, folder)):
        assert {name: apart for name, (apart, _) in results.items() if apart} == {}
        for name, (_, lines) in results.items():
            wanted = ["Resuming exactly, with the state of every rank."] if rank == 0 else []
            assert lines == wanted, name


class _StepsAtEpochEnd(DropoutNet):
    """Changes the learning rate itself at the end of each epoch."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def on_train_epoch_end(self) -> None:
        self.trainer.optimizers[0].param_groups[0]["lr"] *= 0.7


class _Plateau(DropoutNet):
    """Lowers the learning rate whenever a loss has not risen."""

    def __init__(self, *args: Any, interval: str, monitor: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.followed = {"interval": interval, "monitor": monitor}

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True, on_step=True, on_epoch=False)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.8, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, **self.followed}}


def _accumulating() -> list[Callback]:
    return [GradientAccumulationScheduler({0: 1, 1: 2})]


_WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
LOOPS = {
    "steps, at the end of an epoch": _case("on_train_epoch_end", 1, max_steps=10, max_epochs=-1),
    "steps, after fit": _case("on_train_end", 1, max_steps=10, first={"max_steps": 7}),
    "at the end of a block": _case("on_train_batch_end", 4),
    "at the end of an epoch without validation": _case(
        "on_train_epoch_end", 1, limit_val_batches=0
    ),
    "within a validation": _case("on_validation_batch_end", 2, val_check_interval=2),
    "workers that load data": _case(
        "on_train_batch_end", 7, make_data=partial(shuffled, 5, **_WORKERS)
    ),
    "accumulation of an epoch": _case("on_train_batch_end", 8, make_callbacks=_accumulating),
    "learning rate at the end of an epoch": _case(
        "on_train_batch_end", 5, make_model=_StepsAtEpochEnd
    ),
    "the same after a validation": _case("on_validation_end", 1, make_model=_StepsAtEpochEnd),
    "plateau at the end of an epoch": _case(
        "on_train_epoch_end", 1, make_model=partial(_Plateau, interval="epoch", monitor="val_loss")
    ),
}


def test_every_position_in_the_loops(tmp_path: Path) -> None:
    _check_exact("LOOPS", tmp_path)


class _Stateful:
    """Batches in an order of its own on each rank, which its state continues."""

    def __init__(self) -> None:
        self.epoch = self.position = 0
        self.data = NoisyData(5 * ROWS)

    def __iter__(self) -> Iterator[list[Tensor]]:
        if self.position == 5:  # an epoch has ended
            self.epoch, self.position = self.epoch + 1, 0
        generator = torch.Generator().manual_seed(10 * self.epoch + this_rank())
        order = torch.randperm(5 * ROWS, generator=generator).view(5, ROWS).tolist()
        while self.position < 5:
            self.position += 1
            rows = [self.data[row] for row in order[self.position - 1]]
            yield [torch.stack(column) for column in zip(*rows, strict=True)]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class _WithLength(_Stateful):
    def __len__(self) -> int:
        return 5


def _torchdata() -> Any:
    return import_module("torchdata.stateful_dataloader")


def _of_torchdata() -> Any:
    data = NoisyData(20)
    sampler: Any = DistributedSampler(data, 2, this_rank(), shuffle=True)
    return _torchdata().StatefulDataLoader(data, batch_size=ROWS, sampler=sampler)


def _wrapped() -> Any:
    return _torchdata().StatefulDataLoader(NoisyData(20), batch_size=ROWS, shuffle=True)


def _cases(data: Callable[[], Any]) -> dict[str, Case]:
    return {
        "within an epoch": _case("on_train_batch_end", 7, make_data=data),
        "at the end of an epoch": _case("on_train_epoch_end", 1, make_data=data),
        "after fit": _case("on_train_end", 1, make_data=data, max_steps=10, first={"max_steps": 7}),
    }


WITHOUT_LENGTH = _cases(_Stateful)
OF_TORCHDATA = _cases(_of_torchdata)


@pytest.mark.parametrize("cases", ["WITHOUT_LENGTH", "OF_TORCHDATA"])
def test_loaders_with_a_state_continue_on_each_rank(cases: str, tmp_path: Path) -> None:
    if cases == "OF_TORCHDATA":
        pytest.importorskip("torchdata")
    _check_exact(cases, tmp_path)


class _Reading(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = NoisyData(10)
        return (data[row] for row in range(10))


class _Unknown(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __len__(self) -> int:
        return 10


class _Buckets(BatchSampler):
    """Has a random state of its own, which nobody saves."""

    def __init__(self) -> None:
        super().__init__(SequentialSampler(range(10)), ROWS, drop_last=False)
        self.random = random.Random(0)

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        self.random.shuffle(batches)
        return iter(batches)


class _NoLength(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[row, row + 1] for row in range(0, 10, 2)])

    def set_epoch(self, epoch: int) -> None: ...


def _drawn() -> Any:
    data = NoisyData(10)
    return DataLoader(data, batch_size=ROWS, sampler=RandomSampler(data))


def _cycling() -> Any:
    return CombinedLoader([shuffled(5), shuffled(1, **_WORKERS)], "max_size_cycle")


class _Pairs(DropoutNet):
    """Gets a batch of each of two loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch[0]) + self.loss(batch[1])


_OWN: dict[str, Any] = {"use_distributed_sampler": False}
_Step = partial(_case, "on_train_batch_end", 7)
NOT = {
    "has a generator": _Step(make_data=lambda: shuffled(5, generator=torch.Generator())),
    "persistent workers": _Step(make_data=lambda: shuffled(5, persistent_workers=True, **_WORKERS)),
    "are iterable": _Step(make_data=lambda: DataLoader(_Reading(), batch_size=ROWS)),
    "others have none": _Step(make_data=lambda: [_WithLength(), shuffled(5)], make_model=_Pairs),
    "has ended in this epoch": _Step(make_data=_cycling, make_model=_Pairs),
    "has no length": _Step(
        make_data=lambda: DataLoader(NoisyData(10), batch_sampler=_NoLength()), **_OWN
    ),
    "_Unknown may not follow": _Step(
        make_data=lambda: DataLoader(NoisyData(10), batch_size=ROWS, sampler=_Unknown()), **_OWN
    ),
    "_Buckets may not follow": _Step(
        make_data=lambda: DataLoader(NoisyData(10), batch_sampler=_Buckets()), **_OWN
    ),
    "global random state": _Step(make_data=_drawn, **_OWN),
    "ReduceLROnPlateau": _Step(make_model=partial(_Plateau, interval="step", monitor="loss")),
}


class _Hooked(DropoutNet):
    """Counts batches in hooks that a resume within an epoch does not call again."""

    def on_train_epoch_start(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.batches = getattr(self, "batches", 0) + 1


NOT["before on_train_batch_end of the module"] = _Step(make_model=_Hooked)


class _Growing(pl.LightningDataModule):
    """Has two more batches in every epoch."""

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        return shuffled(3 + 2 * self.trainer.current_epoch)

    def val_dataloader(self) -> Any:
        return validation(8)


AT_ENDS = {
    name: ("on_train_epoch_end", 1, NOT[name][2])
    for name in ("others have none", "global random state")
}
if find_spec("torchdata") is not None:
    NOT["Lightning has wrapped the sampler"] = _case("on_train_epoch_end", 1, make_data=_wrapped)
NOT["whose state is not saved"] = _case("on_train_epoch_end", 1, **NOT["has a generator"][2])

NOT["the data loaders are reloaded"] = _case(
    "on_train_batch_end", 3, make_data=_Growing, reload_dataloaders_every_n_epochs=1
)


def test_other_data_and_schedules_are_called_not_exact(tmp_path: Path) -> None:
    """In one line, without the word "exactly"."""
    first, second = run_ranks(_run, 2, "NOT", tmp_path)
    assert all(lines == [] for _, lines in second.values())
    for name, (apart, lines) in first.items():
        if "reloaded" in name:  # no epoch is left out
            assert [text for text in apart if text.startswith(("/steps", "/epoch"))] == []
        assert len(lines) == 1, (name, lines)
        assert lines[0].startswith(NOT_EXACT)
        assert name in lines[0]


def test_data_that_start_anew_in_each_epoch_are_exact_at_its_end(tmp_path: Path) -> None:
    _check_exact("AT_ENDS", tmp_path)


class _Saves(DropoutNet):
    """Saves in a hook of its own in the second epoch."""

    def __init__(self, hook: str, path: Path) -> None:
        super().__init__()
        before = getattr(self, hook)

        def save(*args: Any) -> Any:
            if self.trainer.current_epoch == 1:
                self.trainer.save_checkpoint(path)
            return before(*args)

        setattr(self, hook, save)


HOOKS = {
    "on_train_epoch_start": "can't be saved in on_train_epoch_start, here of epoch 1",
    **dict.fromkeys(
        ("on_train_batch_start", "on_after_backward", "on_before_optimizer_step"),
        "can't be saved within a step, here that of batch . of epoch 1",
    ),
}


def _refused(folder: Path) -> None:
    for hook, reason in HOOKS.items():
        trainer = make_trainer(BMUF(), max_epochs=2, accumulate_grad_batches=2)
        with pytest.raises(RuntimeError, match=f"{reason}.*Save after a step"):
            trainer.fit(_Saves(hook, folder / f"{hook}.ckpt"), shuffled(5))
    trainer.strategy.barrier()
    assert not list(folder.iterdir())


def test_save_within_a_step_is_refused_on_every_rank(tmp_path: Path) -> None:
    run_ranks(_refused, 2, tmp_path)
