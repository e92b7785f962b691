"""State of a worker in addition to its model and optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.algorithms.chunks import chunks


@dataclass
class TensorMemory:
    """State of GTC for one parameter tensor.

    Attributes:
        residual: part of the gradients, in units of the unscaled gradient, or of the updates, that
            has not been sent yet, flat.
        threshold: T of the next step, in the same units. None before the first gradient.

    """

    residual: Tensor
    threshold: float | None


@dataclass
class GradientMemory:
    """Residuals and thresholds of one worker, keyed by parameter.

    It does not depend on buckets, because DDP forms new buckets after the first step.

    Attributes:
        tensors: residual and threshold of each parameter that is compressed.
        shared: with GTC of updates, x of each parameter: what the ranks of a group share. The
            parameter itself has x minus the residual. Empty otherwise.

    """

    tensors: dict[Parameter, TensorMemory] = field(default_factory=dict)
    shared: dict[Parameter, Tensor] = field(default_factory=dict)

    def of(self, parameter: Parameter, flat: Tensor, threshold: float | None) -> TensorMemory:
        """Memory of a parameter. A missing one is created with a zero residual like ``flat``.

        Args:
            parameter: parameter of the memory.
            flat: gradient of the parameter.
            threshold: fixed threshold, which replaces the current one. None keeps the current one.

        """
        memory = self.tensors.get(parameter)
        if memory is None:
            memory = TensorMemory(torch.zeros_like(flat), threshold)
            self.tensors[parameter] = memory
        elif threshold is not None:
            # The residual of a run with another threshold stays valid: it is not in units of T.
            memory.threshold = threshold
        return memory

    @torch.no_grad()
    def share(self, parameters: Iterable[Parameter]) -> None:
        """Take the values of new ``parameters`` as x, and subtract their residuals, in place."""
        for parameter in parameters:
            if parameter not in self.shared:
                self.shared[parameter] = parameter.detach().clone()
                if parameter in self.tensors:
                    self.write_local(parameter)

    def local_chunks(
        self, parameter: Parameter, *others: Tensor | None
    ) -> Iterator[tuple[Any, ...]]:
        """x minus the residual, which a shared parameter is before a step, beside flat ``others``.

        In chunks that stay in the cache. The first of each is only read.
        """
        memory, shared = self.tensors.get(parameter), self.shared[parameter].reshape(-1)
        residual = None if memory is None else memory.residual
        for x, kept, *rest in chunks(shared, residual, *others):
            yield x if kept is None else x - kept, *rest

    def written(self, values: Mapping[Parameter, Tensor]) -> dict[Parameter, Tensor]:
        """Those of the ``values`` between two steps that hooks have written.

        A shared parameter is x minus its residual otherwise. Tensors are not copied.
        """
        return {
            parameter: value
            for parameter, value in values.items()
            if parameter in self.shared
            and not all(
                torch.equal(local, now)
                for local, now in self.local_chunks(parameter, value.reshape(-1))
            )
        }

    def write_local(self, parameter: Parameter) -> None:
        """Write x minus the residual into a shared parameter."""
        memory, shared = self.tensors.get(parameter), self.shared[parameter]
        if memory is None:
            parameter.copy_(shared)
        else:
            torch.sub(shared, memory.residual.view_as(shared), out=parameter.detach())

    @torch.no_grad()
    def write_shared(self) -> None:
        """Write x into the parameters."""
        for parameter, shared in self.shared.items():
            parameter.copy_(shared)

    @torch.no_grad()
    def release(self, parameters: Iterable[Parameter]) -> None:
        """Write x into parameters that are not trained any more, and drop their residuals."""
        for parameter in parameters:
            if parameter in self.shared:
                parameter.copy_(self.shared.pop(parameter))
                self.tensors.pop(parameter, None)

    @contextmanager
    def group_model(self) -> Iterator[None]:
        """Context in which the parameters are x, which the body may change."""
        self.write_shared()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, shared in self.shared.items():
                    shared.copy_(parameter)
                    self.write_local(parameter)

    def clear(self) -> None:
        """Forget everything. Parameters keep their values."""
        self.tensors.clear()
        self.shared.clear()

    def state(self, names: Mapping[Parameter, str]) -> dict[str, dict[str, Any]]:
        """Residuals and thresholds by the names of the parameters, without copying tensors."""
        return {
            "residuals": {names[p]: memory.residual for p, memory in self.tensors.items()},
            "thresholds": {names[p]: memory.threshold for p, memory in self.tensors.items()},
        }

    def load(
        self, state: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, Parameter]
    ) -> None:
        """Load :meth:`state` for the parameters that exist."""
        for name, residual in state["residuals"].items():
            if name in parameters:
                parameter = parameters[name]
                # A copy, because residuals change in place, and the state belongs to the caller.
                flat = residual.to(parameter.device, parameter.dtype, copy=True)
                self.tensors[parameter] = TensorMemory(flat, state["thresholds"][name])

    def residual_norm(self) -> float:
        """Euclidean norm of all residuals of this worker."""
        # In float64, because the squares of small float16 residuals would be zero.
        squares = sum(
            float(torch.linalg.vector_norm(memory.residual, dtype=torch.float64)) ** 2
            for memory in self.tensors.values()
        )
        return float(squares**0.5)


@dataclass
class StepCount:
    """Steps of one optimizer, counted in calls of ``optimizer_step``.

    Attributes:
        total: steps since the start of the run, including the warm-up.
        in_block: steps since the last synchronisation of models.
        blocks: number of synchronisations of models.
        block_size: steps of the current block if a rule computes them, otherwise 0.

    """

    total: int = 0
    in_block: int = 0
    blocks: int = 0
    block_size: int = 0


@dataclass
class Worker:
    """State of a rank: its residuals and its step counts, one for each optimizer.

    Attributes:
        memory: residuals and thresholds.
        steps: one count for each optimizer.
        samples: samples of the step in progress of each optimizer, if groups count by samples.

    """

    memory: GradientMemory = field(default_factory=GradientMemory)
    steps: list[StepCount] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether a step has been made, in this run or in the run that it resumes."""
        return any(count.total > 0 for count in self.steps)

    def count_optimizers(self, number: int) -> None:
        """Start the counts of ``number`` optimizers at zero."""
        self.samples = [0.0] * number
        self.steps = [StepCount() for _ in range(number)]

    def count_samples(self, samples: float, optimizers: Iterable[int]) -> None:
        """Count samples of the step in progress of some optimizers, by their numbers."""
        for optimizer in optimizers:
            self.samples[optimizer] += samples
