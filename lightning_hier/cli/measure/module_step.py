"""How long a rank takes for a step of the user's module, with nothing to exchange."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import SGD, Adagrad, Optimizer, RMSprop

from lightning_hier.algorithms.planning.workload import OptimizerName, Workload
from lightning_hier.cli.module_size import size_of


@dataclass
class StepClock(Callback):
    """Notes when steps end, and how much of them was backward.

    Attributes:
        ends: seconds, at the end of the batch of each step.
        backward_s: of each step, all its batches together.

    """

    ends: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    _begun: float = 0.0
    _in_step: float = 0.0

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """A backward pass begins."""
        self._begun = _now(pl_module)

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """It has ended."""
        self._in_step += _now(pl_module) - self._begun

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """A step has ended, unless the batch only accumulates."""
        if trainer.global_step > len(self.ends):
            self.ends.append(_now(pl_module))
            self.backward_s.append(self._in_step)
            self._in_step = 0.0


def workload_of(configs: Sequence[str], steps: int, device: torch.device) -> Workload:
    """Build a training from its YAML and take some steps of it on one device, writing nothing.

    Raises:
        ValueError: it came to an end after fewer than four steps.

    """
    # Needs jsonargparse, and links can be timed without it.
    from lightning_hier.cli.lightning_cli import TrainingCLI

    alone = {
        "strategy": "auto",
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": f"[{device.index}]" if device.type == "cuda" else "1",
        "num_nodes": "1",
        "max_epochs": "-1",
        "max_steps": str(steps),
        "limit_val_batches": "0",
        "logger": "false",
        "callbacks": "null",
        # The ranks that measure are not this Trainer's: each trains by itself.
        "plugins": "lightning.pytorch.plugins.environments.LightningEnvironment",
        "enable_checkpointing": "false",
        "enable_progress_bar": "false",
        "enable_model_summary": "false",
    }
    command = TrainingCLI(
        [
            "fit",
            *(f"--config={config}" for config in configs),
            *(f"--trainer.{name}={value}" for name, value in alone.items()),
        ]
    )
    return _time_steps(command.trainer, command.model, command.datamodule)


def _time_steps(
    trainer: pl.Trainer, module: pl.LightningModule, data: pl.LightningDataModule | None
) -> Workload:
    """Train for as many steps as the Trainer is set to; only the second half of them counts."""
    clock = StepClock()
    # Without the one that writes the config.
    trainer.callbacks = [clock]  # type: ignore[attr-defined]
    with _quiet():
        trainer.fit(module, datamodule=data)
    steps = len(clock.ends)
    if steps < 4:
        raise ValueError(
            f"training ended after {steps} steps, and the time of a step needs at least 4: ask for "
            "more steps, or give the Trainer of the config more data"
        )
    counted = range(steps // 2, steps)
    taken = [clock.ends[step] - clock.ends[step - 1] for step in counted]
    step_s = median(taken)
    return Workload(
        name=type(module).__name__,
        **asdict(size_of(module)),
        step_s=step_s,
        backward_share=min(median(clock.backward_s[step] for step in counted) / step_s, 1.0),
        optimizer=_kind_of(trainer.optimizers),
        on_cores=module.device.type == "cpu",
    )


def slowest_of(found: Sequence[Mapping[str, Any]]) -> Workload:
    """That of the rank with the longest step: synchronous ranks wait for it."""
    return Workload(**max(found, key=lambda values: values["step_s"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what every rank's Trainer says of itself."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _kind_of(optimizers: Sequence[Optimizer]) -> OptimizerName:
    first = optimizers[0]
    if isinstance(first, SGD):
        return "sgd_momentum" if first.defaults["momentum"] else "sgd"
    # They keep one number for each parameter; what is not known is taken for a relative of Adam.
    return "sgd_momentum" if isinstance(first, (Adagrad, RMSprop)) else "adam"


def _now(module: pl.LightningModule) -> float:
    if module.device.type == "cuda":
        torch.cuda.synchronize(module.device)
    return time.perf_counter()
