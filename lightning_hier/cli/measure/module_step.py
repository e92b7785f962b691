"""Duration of a step of the user's module on one rank without communication."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import median
from typing import Any, get_args

import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch.optim import Optimizer

from lightning_hier.planning.probe import now
from lightning_hier.planning.workload import OptimizerName, Workload, size_of


def workload_of(configs: Sequence[str], steps: int, device: torch.device) -> Workload:
    """Train for some steps on one device without writing files. The second half counts.

    Raises:
        ValueError: training ended before the fourth step.

    """
    # Imported here, because it needs jsonargparse, which measuring links does not.
    from lightning_hier.cli.lightning_cli import TrainingCLI

    gpu = device.type == "cuda"
    # Options that take precedence over the config: a short run of one rank that writes nothing.
    settings = {
        "strategy": "auto",
        "accelerator": "gpu" if gpu else "cpu",
        "devices": f"[{device.index}]" if gpu else "1",
        "num_nodes": "1",
        "max_epochs": "-1",
        "max_steps": str(steps),
        "limit_val_batches": "0",
        "logger": "false",
        "callbacks": "null",
        # Each rank trains alone, with its own environment.
        "plugins": "lightning.pytorch.plugins.environments.LightningEnvironment",
        "enable_checkpointing": "false",
        "enable_progress_bar": "false",
        "enable_model_summary": "false",
    }
    arguments = [f"--config={config}" for config in configs]
    arguments += [f"--trainer.{name}={value}" for name, value in settings.items()]
    command = TrainingCLI(["fit", *arguments])
    trainer, module = command.trainer, command.model
    ends: list[float] = []

    def on_train_batch_end(*_: Any) -> None:
        # A batch that only accumulates gradients does not end a step.
        if trainer.global_step > len(ends):
            ends.append(now(device))

    # Remove the callback that writes the config.
    trainer.callbacks = [  # type: ignore[attr-defined]
        LambdaCallback(on_train_batch_end=on_train_batch_end)
    ]
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    # Otherwise every rank would repeat the Trainer's messages.
    log.setLevel(logging.ERROR)
    trainer.fit(module, datamodule=command.datamodule)
    log.setLevel(level)
    steps = len(ends)
    if steps < 4:
        raise ValueError(
            f"training ended after {steps} steps, but at least 4 are needed to measure a step: "
            "increase --steps, or give the Trainer of the config more data"
        )
    return Workload(
        name=type(module).__name__,
        **size_of(module),
        step_s=median(ends[n] - ends[n - 1] for n in range(steps // 2, steps)),
        optimizer=_optimizer(trainer.optimizers[0]),
        on_cores=not gpu,
    )


def _optimizer(optimizer: Optimizer) -> OptimizerName:
    """Name of an optimizer by its state tensors per parameter, without scalars such as a step."""
    state: dict[str, Any] = next(iter(optimizer.state.values()), {})
    kept = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim()]
    return get_args(OptimizerName)[min(len(kept), 2)]  # type: ignore[no-any-return]
