"""Local models that a rank trains in turn, each with its own optimizer state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.saved_optimizer import GroupChanges, SavedOptimizer


@dataclass
class _SavedModel:
    """Storage of a local model that is not in the module."""

    values: dict[Tensor, Tensor]
    gradients: dict[Parameter, Tensor | None]
    optimizers: list[SavedOptimizer]


class LocalModels:
    """Local models of one rank. One of them is in the module, the others are saved.

    A swap makes the same tensors, including those of optimizer state, refer to other storage.
    Nothing is copied, and references to a parameter, a buffer or a tensor of optimizer state remain
    valid. A model needs the memory of its trainable parameters and buffers, of its optimizer state,
    and, while gradients are accumulated, of its gradients.

    Changes of an optimizer's group settings during a model's turn (step counts) belong to this
    model. Changes between turns (learning rates of schedulers) apply to all models.

    Args:
        module: module that is trained. All models share frozen parameters.
        optimizers: optimizers of the module.
        number: number of models.

    Attributes:
        number: number of models.
        current: index of the model in the module.
        buffers: buffers of the module.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer], number: int = 1) -> None:
        self._module = module
        self._optimizers = list(optimizers)
        self.number = number
        self.current = 0
        self.buffers = ModuleBuffers(module)
        self._saved: dict[int, _SavedModel] = {}
        self._parameters: dict[Parameter, None] = {}  # in order
        self._in_turns = False
        self._changes: list[GroupChanges] = []

    @property
    def present(self) -> int:
        """Current number of models: one, until :meth:`open`."""
        return 1 + len(self._saved)

    @property
    def parameters(self) -> Collection[Parameter]:
        """Parameters that every model has separately after :meth:`open`."""
        return self._parameters

    @property
    def is_last(self) -> bool:
        """Whether the model in the module is the last of a round."""
        return self.current == len(self._saved)

    def open(self) -> None:
        """Create the other models and their optimizer state as copies of those in the module.

        Does nothing if they exist. It is called when blocks start: in the warm-up, all workers of a
        rank train one model.
        """
        if self.number == 1 or self._saved:
            return
        # Kept, because modules with several optimizers freeze some parameters temporarily.
        self._parameters = {p: None for p in self._module.parameters() if p.requires_grad}
        for other in range(self.number):
            if other != self.current:
                self._saved[other] = _cloned(self._save())
        self._note_groups()

    @contextmanager
    def opened(self, *, needed: bool = True) -> Iterator[None]:
        """Open the models for the body if ``needed``, and discard them if they did not exist."""
        existed = bool(self._saved)
        if needed:
            self.open()
        try:
            yield
        finally:
            if not existed:
                self.forget()

    def forget(self) -> None:
        """Discard all models except the one in the module."""
        self._saved.clear()
        self.current = 0

    def take(self, number: int) -> None:
        """Swap a model into the module."""
        if number == self.current:
            return
        # By reference: the storage of the current model stays where it is.
        self._saved[self.current] = self._save()
        self._restore(self._saved.pop(number))
        self.current = number

    def each(self) -> Iterator[int]:
        """Swap every model into the module in turn, and yield its index. Restores the current one.

        Before :meth:`open`, it yields only the current one.
        """
        if not self._saved:
            yield self.current
            return
        before, nested = self.current, self._in_turns
        # A block may end during the turn of a model. Only the outer round sees what schedulers,
        # which run between two rounds, have changed.
        if not nested:
            self._apply_changes()
        self._in_turns = True
        try:
            for number in range(self.number):
                self.take(number)
                yield number
        finally:
            self.take(before)
            self._in_turns = nested
            if not nested:
                self._note_groups()

    def others(self) -> Iterator[int]:
        """As :meth:`each`, without the current model."""
        before = self.current
        return (number for number in self.each() if number != before)

    def _save(self) -> _SavedModel:
        self.buffers.reclaim()  # the storage that is saved must be that of the first tensors
        tensors: list[Tensor] = [*self._parameters, *self.buffers.tensors]
        return _SavedModel(
            {tensor: tensor.data for tensor in tensors},
            {parameter: parameter.grad for parameter in self._parameters},
            [SavedOptimizer.of(optimizer) for optimizer in self._optimizers],
        )

    def _restore(self, saved: _SavedModel) -> None:
        for tensor, data in saved.values.items():
            tensor.data = data
        for parameter, gradient in saved.gradients.items():
            parameter.grad = gradient
        for optimizer, kept in zip(self._optimizers, saved.optimizers, strict=True):
            kept.restore(optimizer)

    def _note_groups(self) -> None:
        self._changes = [GroupChanges(optimizer) for optimizer in self._optimizers]

    def _apply_changes(self) -> None:
        for saved in self._saved.values():
            for changes, optimizer in zip(self._changes, saved.optimizers, strict=True):
                changes.apply(optimizer, torch.clone)


def _cloned(saved: _SavedModel) -> _SavedModel:
    """The same values in separate storage with the same layout."""
    memory: dict[int, torch.UntypedStorage] = {}

    def clone(data: Tensor) -> Tensor:
        # Tensors that share a storage share its copy, as cuDNN needs for the weights of an LSTM.
        storage = data.untyped_storage()
        place = storage.data_ptr()
        if place not in memory:
            memory[place] = storage.clone()
        copy = torch.empty(0, dtype=data.dtype, device=data.device)
        copy.set_(memory[place], data.storage_offset(), data.size(), data.stride())
        return copy

    return _SavedModel(
        {tensor: clone(storage) for tensor, storage in saved.values.items()},
        dict.fromkeys(saved.gradients),  # none: those in the module belong to its model
        [optimizer.cloned(clone) for optimizer in saved.optimizers],
    )
