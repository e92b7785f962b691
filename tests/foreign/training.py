"""Trains the model of a package on one rank, and returns what the ranks are compared by."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning_hier.pytorch_lightning  # noqa: F401  # registers the names, for both packages
from tests.foreign.task import build, fingerprint

LOGGERS = ("lightning.pytorch", "pytorch_lightning", "lightning_hier")


def save_step(steps: int) -> int:
    """Step whose checkpoint is resumed, within an epoch. Two optimizers make an even number."""
    return (steps * 3 // 5 + 2) // 2 * 2


def train(
    package: str, strategy: str, seed: int, folder: Path, devices: int, resume: bool = False
) -> dict[str, Any]:
    """Train from the start, or from the checkpoint of an earlier run, and save the result."""
    task = build(package, seed)
    saved = task.lightning.callbacks.ModelCheckpoint(
        folder, "middle", every_n_train_steps=save_step(task.steps), save_on_train_epoch_end=False
    )
    if task.unused:
        strategy += "_find_unused_parameters_true"
    with warnings.catch_warnings(record=True) as caught, _Lines() as lines:
        warnings.simplefilter("always")
        trainer = task.trainer(
            accelerator="cpu",
            devices=devices,
            num_nodes=2,
            strategy=strategy,
            max_steps=task.steps,
            max_epochs=-1,
            callbacks=[saved],
            logger=False,
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trust: dict[str, Any] = {"weights_only": False} if task.pickles else {}
        path = folder / "middle.ckpt" if resume else None
        trainer.fit(task.module, task.train, task.val, ckpt_path=path, **trust)
        module = task.module
        module.trainer.save_checkpoint(folder / ("resumed.ckpt" if resume else "last.ckpt"))
    return {
        "steps": module.trainer.global_step,
        "tensors": fingerprint(dict(module.named_parameters()) | dict(module.named_buffers())),
        "state": fingerprint(module.state_dict()),
        "lines": lines.lines + [str(warning.message) for warning in caught],
    }


class _Lines(logging.Handler):
    """Keeps what Lightning and lightning_hier log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> _Lines:
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
