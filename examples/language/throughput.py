"""A callback that logs tokens per second and, on a GPU, model FLOPs utilisation (MFU)."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer

from examples.language.model import LanguageModel
from examples.language.windows import Batch


class Throughput(Callback):
    """Log ``train/tokens_per_second`` of this rank and, on CUDA, ``train/mfu``.

    Model FLOPs utilisation is the number of floating-point operations of the model per second (see
    :func:`flops_per_token`) divided by the peak of the device in the Trainer's precision. It does
    not include the operations that activation checkpointing repeats. It is not logged for devices
    whose peak Lightning has no value for. Validation and the first step after it are not measured.

    Values are local to each rank. The callback does not communicate.

    Args:
        every_n_steps: number of batches over which a value is measured.

    Raises:
        ValueError: ``every_n_steps`` is below 1.

    """

    def __init__(self, *, every_n_steps: int = 20) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, got {every_n_steps}")
        self.every_n_steps = every_n_steps
        self._peak: int | None = None
        self._start_s: float | None = None
        self._tokens = 0
        self._batches = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Get the peak FLOPs of the device."""
        self._restart()
        if pl_module.device.type == "cuda":
            self._peak = get_available_flops(pl_module.device, _dtype_of(trainer.precision))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restart the measurement."""
        self._restart()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Count the tokens of the batch, and log a value after ``every_n_steps`` batches."""
        assert isinstance(batch, Batch) and isinstance(pl_module, LanguageModel)
        if self._start_s is None:  # the first batch is not counted, because it may compile
            self._start_s = _now_s(pl_module.device)
            return
        self._tokens += batch.targets.numel()
        self._batches += 1
        if self._batches < self.every_n_steps:
            return
        rate = self._tokens / (_now_s(pl_module.device) - self._start_s)
        pl_module.log("train/tokens_per_second", rate)
        if self._peak:
            mesh = pl_module.device_mesh
            ranks = 1 if mesh is None else mesh["tensor_parallel"].size()
            pl_module.log("train/mfu", rate * flops_per_token(pl_module) / (self._peak * ranks))
        self._restart()

    def _restart(self) -> None:
        self._start_s = None
        self._tokens = 0
        self._batches = 0


def flops_per_token(model: LanguageModel) -> int:
    """Return the floating-point operations of one token: ``6 N + 12 L d T``.

    N is the number of elements of all matrices. The tied embedding counts once, for the logits. The
    second term is attention over T positions. By convention, it includes the half that a causal
    mask can skip.
    """
    shape = model.shape
    matrices = sum(p.numel() for p in model.transformer.parameters() if p.dim() == 2)
    return 6 * matrices + 12 * shape.layers * shape.width * model.context


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _dtype_of(precision: str) -> torch.dtype:
    if precision.startswith("bf16"):
        return torch.bfloat16
    return torch.float16 if precision.startswith("16") else torch.float32
