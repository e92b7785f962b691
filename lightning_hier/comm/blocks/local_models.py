"""The local models that one rank trains in turns, each with the state of its own optimizers."""

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
class _Away:
    """A local model that is not in the module: what its tensors hold."""

    values: dict[Tensor, Tensor]
    gradients: dict[Parameter, Tensor | None]
    optimizers: list[SavedOptimizer]


class LocalModels:
    """Local models of one rank; one of them is in the module, the others are away.

    A model is put into the module by having the same tensors, and those of the same optimizers'
    state, refer to other memory: nothing is copied, and whoever holds a parameter, a buffer or a
    tensor of an optimizer's state finds what the model in the module has there. A model takes the
    memory of its trainable parameters and buffers, of its optimizers' state, and, while a step is
    accumulated, of its gradients.

    What changes in the groups of an optimizer in a model's turn (step counts that it keeps there)
    is that model's; what changes between turns (learning rates that schedulers set) is for all.

    Args:
        module: what is trained; frozen parameters are the same in all models.
        optimizers: of the module.
        number: how many there are.

    Attributes:
        number: how many there are.
        current: which of them is in the module, from 0.
        buffers: of the module.

    """

    def __init__(self, module: Module, optimizers: Sequence[Optimizer], number: int = 1) -> None:
        self._module = module
        self._optimizers = list(optimizers)
        self.number = number
        self.current = 0
        self.buffers = ModuleBuffers(module)
        self._away: dict[int, _Away] = {}
        self._parameters: dict[Parameter, None] = {}  # in order
        self._in_turns = False
        self._changes: list[GroupChanges] = []

    @property
    def in_play(self) -> int:
        """How many there are at present: one, until they are opened."""
        return 1 + len(self._away)

    @property
    def parameters(self) -> Collection[Parameter]:
        """Those of which every model has its own, once they are opened."""
        return self._parameters

    @property
    def is_last(self) -> bool:
        """Whether the model in the module is the last of a round."""
        return self.current == self.in_play - 1

    def open(self) -> None:
        """Make all models, and their optimizers' state, equal to that in the module.

        Does nothing where they are there already.
        """
        if self.number == 1 or self._away:
            return
        # Of these, whatever is frozen for a while: modules with several optimizers do that.
        self._parameters = {own: None for own in self._module.parameters() if own.requires_grad}
        for other in range(self.number):
            if other != self.current:
                self._away[other] = _cloned(self._put_away())
        self._note_groups()

    @contextmanager
    def opened(self, *, needed: bool = True) -> Iterator[None]:
        """Have all models there for a while, if ``needed``, and afterwards no more than before."""
        there = bool(self._away)
        if needed:
            self.open()
        try:
            yield
        finally:
            if not there:
                self.forget()

    def forget(self) -> None:
        """Keep the model in the module as the only one, until they are opened again."""
        self._away.clear()
        self.current = 0

    def take(self, number: int) -> None:
        """Put one model into the module, in the place of the present one."""
        if number == self.current:
            return
        self._away[self.current] = self._put_away()
        self._put_back(self._away.pop(number))
        self.current = number

    def each(self) -> Iterator[int]:
        """Every model in turn, in the module while its number is given; at the end as before.

        Where they have not been opened there is one.
        """
        if not self._away:
            yield self.current
            return
        before, nested = self.current, self._in_turns
        if not nested:
            self._tell_changes()
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
        """As :meth:`each`, without the present one."""
        before = self.current
        return (number for number in self.each() if number != before)

    def _put_away(self) -> _Away:
        self.buffers.reclaim()
        tensors: list[Tensor] = [*self._parameters, *self.buffers.tensors]
        return _Away(
            {own: own.data for own in tensors},
            {own: own.grad for own in self._parameters},
            [SavedOptimizer.of(optimizer) for optimizer in self._optimizers],
        )

    def _put_back(self, away: _Away) -> None:
        for own, data in away.values.items():
            own.data = data
        for parameter, gradient in away.gradients.items():
            parameter.grad = gradient
        for optimizer, kept in zip(self._optimizers, away.optimizers, strict=True):
            kept.put_back(optimizer)

    def _note_groups(self) -> None:
        self._changes = [GroupChanges(optimizer) for optimizer in self._optimizers]

    def _tell_changes(self) -> None:
        for away in self._away.values():
            for changes, own in zip(self._changes, away.optimizers, strict=True):
                changes.tell(own, torch.clone)


def _cloned(away: _Away) -> _Away:
    """The same values in memory of their own, laid out in the same way."""
    memory: dict[int, torch.UntypedStorage] = {}

    def clone(data: Tensor) -> Tensor:
        # Tensors that share a storage share its copy, as cuDNN wants the weights of an LSTM.
        storage = data.untyped_storage()
        place = storage.data_ptr()
        if place not in memory:
            memory[place] = storage.clone()
        made = torch.empty(0, dtype=data.dtype, device=data.device)
        made.set_(memory[place], data.storage_offset(), data.size(), data.stride())
        return made

    return _Away(
        {own: clone(held) for own, held in away.values.items()},
        dict.fromkeys(away.gradients),
        [optimizer.cloned(clone) for optimizer in away.optimizers],
    )
