"""Runs code blocks of a page on the ranks of a test, with a quiet Trainer on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.trainer.fitting import make_trainer

_REAL_TRAINER = pl.Trainer
# Settings of a Trainer on a page that describe a cluster, which a test does not have.
_LEFT_OUT = ("accelerator", "devices", "num_nodes", "max_epochs")


def small_trainer(**settings: Any) -> pl.Trainer:
    """Create a Trainer with the settings of a page, but for the ranks and devices of the test."""
    remaining = {name: value for name, value in settings.items() if name not in _LEFT_OUT}
    saving = any(isinstance(one, ModelCheckpoint) for one in remaining.get("callbacks", []))
    with mock.patch.object(pl, "Trainer", _REAL_TRAINER):
        return make_trainer(remaining.pop("strategy"), enable_checkpointing=saving, **remaining)


def run_code(code: Sequence[str], names: dict[str, Any]) -> dict[str, Any]:
    """Run blocks in order in one namespace, and return it."""
    namespace = dict(names)
    with mock.patch.object(pl, "Trainer", small_trainer):
        for text in code:
            exec(compile(text, "<documentation>", "exec"), namespace)
    return namespace
