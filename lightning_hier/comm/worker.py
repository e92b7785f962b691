"""State of one worker besides the model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass
class TensorMemory:
    """State of GTC for one parameter tensor.

    Attributes:
        residual: gradient not sent yet, flat, in units of the unscaled gradient.
        threshold: T of the next step; None until the first gradient has been seen.

    """

    residual: Tensor
    threshold: float | None


@dataclass
class GradientMemory:
    """Residuals and thresholds of one worker, keyed by parameter.

    DDP forms new buckets after the first step, so nothing here knows of buckets.
    """

    tensors: dict[Parameter, TensorMemory] = field(default_factory=dict)

    def of(self, parameter: Parameter, flat: Tensor, threshold: float | None) -> TensorMemory:
        """Memory of a parameter; a zero residual like ``flat`` where there is none yet.

        Args:
            parameter: whose.
            flat: its gradient.
            threshold: a fixed one, whatever was used before; None keeps the one that is there.

        """
        memory = self.tensors.get(parameter)
        if memory is None:
            memory = TensorMemory(torch.zeros_like(flat), threshold)
            self.tensors[parameter] = memory
        elif threshold is not None:
            memory.threshold = threshold
        return memory

    def state(self, names: Mapping[Parameter, str]) -> dict[str, dict[str, Any]]:
        """Residuals and thresholds by the names of the parameters; the tensors are not copied."""
        return {
            "residuals": {names[own]: memory.residual for own, memory in self.tensors.items()},
            "thresholds": {names[own]: memory.threshold for own, memory in self.tensors.items()},
        }

    def load(
        self, state: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, Parameter]
    ) -> None:
        """Load :meth:`state` for the parameters that exist."""
        for name, residual in state["residuals"].items():
            if name in parameters:
                own = parameters[name]
                flat = residual.to(own.device, own.dtype, copy=True)
                self.tensors[own] = TensorMemory(flat, state["thresholds"][name])

    def forget(self, parameters: Iterable[Parameter]) -> None:
        """Reset residuals and thresholds of these parameters."""
        for parameter in parameters:
            memory = self.tensors.get(parameter)
            if memory is not None:
                memory.residual.zero_()
                memory.threshold = None

    def residual_norm(self) -> float:
        """Euclidean norm of all residuals of this worker."""
        squares = sum(
            float(torch.linalg.vector_norm(memory.residual, dtype=torch.float64)) ** 2
            for memory in self.tensors.values()
        )
        return float(squares**0.5)


@dataclass
class StepCount:
    """Steps of one optimizer, counted in calls of ``optimizer_step``.

    Attributes:
        total: since the start of the run, warm-up included.
        in_block: since the last synchronisation of models.
        blocks: synchronisations of models so far.
        excluded: groups left out of them because their models were not finite, each time counted.

    """

    total: int = 0
    in_block: int = 0
    blocks: int = 0
    excluded: int = 0


@dataclass
class Worker:
    """One worker: its residuals and its step counts, one for each optimizer.

    Attributes:
        memory: residuals and thresholds.
        steps: one count for each optimizer, which the workers of a rank share.
        loss_scale: scale of fp16 gradients when the model was last known to be healthy; None
            where gradients are not scaled.

    """

    memory: GradientMemory = field(default_factory=GradientMemory)
    steps: list[StepCount] = field(default_factory=list)
    loss_scale: float | None = None

    @classmethod
    def several(cls, number: int) -> list[Worker]:
        """Virtual workers of one rank, with common step counts."""
        first = cls()
        return [first, *(cls(steps=first.steps) for _ in range(1, number))]

    @property
    def begun(self) -> bool:
        """Whether a step has been taken, in this run or in the one that it resumes."""
        return any(count.total > 0 for count in self.steps)

    def count_optimizers(self, number: int) -> None:
        """Start the counts of ``number`` optimizers at zero."""
        self.steps[:] = [StepCount() for _ in range(number)]
