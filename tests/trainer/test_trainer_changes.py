"""Methods of a Trainer that are replaced are listed, and put back."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from lightning_hier.strategies.private_names import OF_TRAINER
from lightning_hier.strategies.trainer_changes import TrainerChanges

REPLACED = [path for path, use in OF_TRAINER.items() if use.startswith("replaced")]


@pytest.fixture
def trainer() -> Any:
    return pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)


def test_all_changes_are_taken_back(trainer: Any) -> None:
    before, callbacks = _methods(trainer), list(trainer.callbacks)
    changes = TrainerChanges(trainer)
    for path in REPLACED:
        changes.replace(path, lambda own: own)
    changes.surround_callbacks([Callback()], [Callback()])
    assert not any(own == other for own, other in zip(_methods(trainer), before, strict=True))
    assert trainer.callbacks[1:-1] == callbacks
    changes.close()
    assert _methods(trainer) == before
    assert trainer.callbacks == callbacks


@pytest.mark.parametrize(
    ("path", "error"), [("fit_loop.run", KeyError), ("fit_loop._data_source", ValueError)]
)
def test_other_methods_are_refused(trainer: Any, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        TrainerChanges(trainer).replace(path, lambda own: own)


def _methods(trainer: Any) -> list[Any]:
    found = []
    for path in REPLACED:
        holder = trainer
        for name in path.split("."):
            holder = getattr(holder, name)
        found.append(holder)
    return found
