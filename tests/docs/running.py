"""Run blocks of a page on ranks: small, quiet, on the CPU, whatever the page says of its hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.trainer.fitting import make_trainer

_REAL_TRAINER = pl.Trainer
# What a page says of a cluster; there are other hosts and devices here.
_LEFT_OUT = ("accelerator", "devices", "num_nodes", "max_epochs")


def small_trainer(**settings: Any) -> pl.Trainer:
    """A Trainer with a page's settings, for the ranks and devices that are there."""
    kept = {name: value for name, value in settings.items() if name not in _LEFT_OUT}
    saving = any(isinstance(one, ModelCheckpoint) for one in kept.get("callbacks", []))
    with mock.patch.object(pl, "Trainer", _REAL_TRAINER):
        return make_trainer(kept.pop("strategy"), enable_checkpointing=saving, **kept)


def run_code(code: Sequence[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run blocks one after the other in one namespace, which is returned."""
    namespace = dict(names)
    with mock.patch.object(pl, "Trainer", small_trainer):
        for text in code:
            exec(compile(text, "<documentation>", "exec"), namespace)
    return namespace
