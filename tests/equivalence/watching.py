"""A run under observation: what validation, callbacks, schedulers and checkpoints get to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from tests.equivalence.cases import Case, make_module, make_trainer, rank_number, state_of
from tests.equivalence.tasks import loader
from tests.equivalence.twins import Values


@dataclass
class Seen:
    """Copies of one rank's network, keyed by the number of batches trained until then.

    Attributes:
        local: at the end of every batch, as training goes on with it.
        scheduled: as a learning-rate scheduler saw it, one for each of its steps.
        validated: in validation.
        epoch_ends: in a callback's ``on_train_epoch_end``.
        module_epoch_ends: in the module's own hook of that name.
        saved: in the state that the strategy hands out for a checkpoint.
        final: after ``fit``.

    """

    local: dict[int, Values] = field(default_factory=dict)
    scheduled: list[Values] = field(default_factory=list)
    validated: dict[int, Values] = field(default_factory=dict)
    epoch_ends: dict[int, Values] = field(default_factory=dict)
    module_epoch_ends: dict[int, Values] = field(default_factory=dict)
    saved: dict[int, Values] = field(default_factory=dict)
    final: Values = field(default_factory=dict)


class Watcher(Callback):
    """Fills in a :class:`Seen`, and saves a checkpoint after the given batches."""

    def __init__(self, seen: Seen, save_after: Sequence[int], folder: Path | None) -> None:
        self._seen, self._save_after, self._folder = seen, save_after, folder
        self._batches = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any
    ) -> None:
        self._batches += 1
        if self._batches in self._save_after:
            self._save(trainer)
        self._seen.local[self._batches] = state_of(pl_module.net)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.validated[self._batches] = state_of(pl_module.net)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.epoch_ends[self._batches] = state_of(pl_module.net)

    def _save(self, trainer: pl.Trainer) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        self._seen.saved[self._batches] = {
            name.removeprefix("net."): value.clone() for name, value in state.items()
        }
        if self._folder is not None:
            trainer.save_checkpoint(self._folder / f"{self._batches}.ckpt")


def watch(
    case: Case,
    *,
    looking: bool = True,
    save_after: Sequence[int] = (),
    folder: Path | None = None,
) -> Seen:
    """Train on this rank; with ``looking``, validate and save on the way.

    The case's ``trainer`` says when to validate; without ``looking`` it never is.
    """
    seen = Seen()
    pl.seed_everything(rank_number(), verbose=False)
    module = make_module(case, seed=rank_number())
    _add_scheduler(module, seen)
    module.on_train_epoch_end = lambda: seen.module_epoch_ends.update(  # type: ignore[method-assign]
        {max(seen.local): state_of(module.net)}
    )
    callbacks = [Watcher(seen, save_after if looking else (), folder)]
    never = {} if looking else {"limit_val_batches": 0}
    trainer = make_trainer(case, callbacks=callbacks, **never)
    batches = loader(rank_number(), case.batches)
    trainer.fit(module, batches, loader(0, 2))
    seen.final = state_of(module.net)
    return seen


def _add_scheduler(module: pl.LightningModule, seen: Seen) -> None:
    """Give the module a scheduler that changes nothing and notes the weights when it steps."""
    if not module.automatic_optimization:
        return
    configure = module.configure_optimizers

    def note(step: int) -> float:
        seen.scheduled.append(state_of(module.net))
        return 1.0

    def with_scheduler() -> dict[str, Any]:
        optimizer = configure()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, note)
        seen.scheduled.clear()  # a scheduler steps once when it is made
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    module.configure_optimizers = with_scheduler  # type: ignore[assignment, method-assign]


def watch_all(cases: Sequence[Case], folder: Path | None = None) -> dict[str, tuple[Seen, Seen]]:
    """Every case twice: watched with looks on the way, and without."""
    return {
        case.name: (
            watch(
                case,
                save_after=(1, 2, 4, 6),
                folder=None if folder is None else _made(folder / case.name),
            ),
            watch(case, looking=False),
        )
        for case in cases
    }


def watch_blind(cases: Sequence[Case]) -> dict[str, Seen]:
    """Every case without looks on the way."""
    return {case.name: watch(case, looking=False) for case in cases}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
