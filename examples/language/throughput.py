"""Tokens per second, and on a GPU the share of its peak that they use (MFU)."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch import Callback, LightningModule, Trainer

from examples.language.model import LanguageModel
from examples.language.windows import Batch


class Throughput(Callback):
    """Log ``train/tokens_per_second`` of this rank, and ``train/mfu`` where it runs on CUDA.

    Model FLOPs utilisation is the model's floating-point operations, see :func:`flops_per_token`,
    over those of the device's peak in the Trainer's precision. Operations that activation
    checkpointing repeats don't count. It is left out for devices whose peak Lightning does not
    know. Validation and the first steps after it are not measured.

    Nothing is sent: ranks have values of their own.

    Args:
        every_n_steps: batches over which one value is measured.

    Raises:
        ValueError: ``every_n_steps`` below 1.
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
        """Look up the device's peak."""
        self._restart()
        if pl_module.device.type == "cuda":
            self._peak = get_available_flops(pl_module.device, _dtype_of(trainer.precision))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the batches so far."""
        self._restart()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *where: Any
    ) -> None:
        """Count the batch, and log."""
        assert isinstance(batch, Batch) and isinstance(pl_module, LanguageModel)
        if self._start_s is None:  # the first batch is not counted: it may be compiling
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
    """Floating-point operations of forward and backward for one token: ``6 N + 12 L d T``.

    N are the parameters of all matrices; the tied embedding counts once, for the logits. The second
    term is attention over T positions, as it is usually counted: a causal mask saves half of it.
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
