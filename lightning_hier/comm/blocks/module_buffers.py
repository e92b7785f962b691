"""Buffers of a module at the start of training, also where it rebinds their names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.health import HealthReport, Nonfinite, span


class ModuleBuffers:
    """Keeps the tensors of a module's buffers the same.

    ``self.center = 0.9 * self.center + 0.1 * seen`` binds another tensor to the buffer's name at
    every step, but blocks and local models refer to the first one. :meth:`reclaim` copies the new
    value into the first tensor and binds that to the name again.

    Args:
        module: module with its present buffers.

    Attributes:
        names: names of the buffers, the first one of each.
        unfit: names of buffers that can't be reclaimed: they were removed, changed their shape or
            dtype, or had several names of which some are bound to other tensors now.

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
        """Copy the module's present values into the buffers, and bind these to their names."""
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
        """Part of the health report."""
        return Nonfinite.UNFIT if self.unfit else Nonfinite.NOTHING

    def require_fit(self, statuses: Sequence[HealthReport]) -> None:
        """Check the reports of all ranks. The same on every rank; no communication.

        Raises:
            ValueError: on every rank, if any has a buffer that can't be reclaimed.

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
