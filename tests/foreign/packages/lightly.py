"""BYOL of lightly: a frozen teacher that the module updates at every step, and BatchNorm."""

from __future__ import annotations

from examples.recipes.byol import BYOL, loader
from tests.foreign.task import Task


def task() -> Task:
    """Return BYOL and digits."""
    return Task(
        module=BYOL(),
        train=loader(0, 800, shuffle=True, drop_last=True),
        val=loader(1600, 1664),
        metric="val_loss",
        load=BYOL.load_from_checkpoint,
        steps=40,
    )
