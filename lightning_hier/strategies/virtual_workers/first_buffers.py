"""The buffers of workers that share a model: those of the first, as under DDP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_hier.comm.blocks.local_values import SavedTensors
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.channel import Channel


class FirstBuffers:
    """Has all workers of a group begin a forward pass with the buffers of the group's first.

    DDP copies them from the first rank before every forward pass; what the others make of theirs in
    between is lost, there and here.

    Args:
        buffers: of the module that the workers share.
        group: the ranks whose workers share the model.

    """

    def __init__(self, buffers: ModuleBuffers, group: Channel) -> None:
        self._buffers = buffers
        self._group = group
        self._begun: list[Tensor] = []

    def begin(self) -> None:
        """Begin a batch of every worker. A collective of the group."""
        self._buffers.reclaim()
        own = self._buffers.tensors
        broadcast_tensors_(own, self._group, "buffers")
        self._begun = [buffer.clone() for buffer in own]

    @contextmanager
    def of_another(self) -> Iterator[None]:
        """Lend one of the others what the first began with; put back what that one has left."""
        self._buffers.reclaim()
        own = list(self._buffers.tensors)
        first = SavedTensors()
        first.save(own)
        if own:
            torch._foreach_copy_(own, self._begun)
        try:
            yield
        finally:
            self._buffers.reclaim()
            first.restore()
