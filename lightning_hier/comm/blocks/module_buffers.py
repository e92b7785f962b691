"""The buffers that a module had when training began, also where it binds others to their names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.health import Nonfinite
from lightning_hier.comm.blocks.health_report import HealthReport, span


class ModuleBuffers:
    """Has a module go on with the same buffers, whatever tensors it makes of them.

    ``self.center = 0.9 * self.center + 0.1 * seen`` leaves another tensor under the buffer's name
    at every step. Blocks, looks and local models hold on to tensors, so they would go on with one
    that nobody reads any more. :meth:`reclaim` copies the new value into the first tensor, and puts
    that back under the name.

    Args:
        module: whose present buffers are meant.

    Attributes:
        names: of the buffers, each once: the first that the module has for it.
        unfit: names of those that can't be brought back: they are gone, have got another shape or
            dtype, or were one under several names and are not any more.

    """

    def __init__(self, module: Module) -> None:
        self._places: dict[Tensor, list[tuple[Module, str]]] = {}
        self.names: dict[Tensor, str] = {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            path, _, own_name = name.rpartition(".")
            self._places.setdefault(buffer, []).append((module.get_submodule(path), own_name))
            self.names.setdefault(buffer, name)
        self.unfit: list[str] = []

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The buffers, each once."""
        return list(self.names)

    @torch.no_grad()
    def reclaim(self) -> None:
        """Copy what the module has under the buffers' names into them, and put them back there."""
        self.unfit = []
        for own, places in self._places.items():
            present = {holder._buffers.get(name) for holder, name in places}
            if present == {own}:
                continue
            value = present.pop()
            if present or value is None or (value.shape, value.dtype) != (own.shape, own.dtype):
                self.unfit.append(self.names[own])
                continue
            if value.device == own.device:
                own.copy_(value.clone())  # it may be a view of the same memory
            else:
                own.data = value.data  # the module has been moved, and its parameters with it
            for holder, name in places:
                holder._buffers[name] = own

    @property
    def finding(self) -> Nonfinite:
        """What of this is told to all ranks."""
        return Nonfinite.UNFIT if self.unfit else Nonfinite.NOTHING

    def require_fit(self, statuses: Sequence[HealthReport]) -> None:
        """Check what all ranks have told. The same on every rank; no communication.

        Raises:
            ValueError: on every rank, if any has a buffer that can't be brought back.

        """
        ranks = [i for i, status in enumerate(statuses) if status.nonfinite & Nonfinite.UNFIT]
        if not ranks:
            return
        names = ", ".join(map(repr, self.unfit)) or "its own error names them"
        raise ValueError(
            f"rank{'s' * (len(ranks) > 1)} {span(ranks)} took away buffers while training, or gave "
            f"them another shape or dtype ({names}): ranks average buffers, or keep them equal, "
            "element by element. Keep what changes its shape in a plain attribute of the module."
        )
