"""Buffers of a module, kept as the same tensors even if the module rebinds their names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module

from lightning_hier.comm.blocks.health import HealthReport, Nonfinite
from lightning_hier.comm.progress_record import named_ranks


class ModuleBuffers:
    """Keeps the tensors of a module's buffers the same.

    ``self.center = 0.9 * self.center + 0.1 * seen`` binds a new tensor to the name of the buffer in
    every step, but blocks and local models refer to the first tensor. :meth:`reclaim` copies the
    new value into the first tensor and binds it to the name again.

    Args:
        module: module with its current buffers.

    Attributes:
        names: first name of each buffer.
        unfit: names of buffers that cannot be reclaimed because they were removed, have another
            shape or dtype, or had several names that are no longer bound to the same tensor.

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
        """The buffers, without duplicates."""
        return list(self.names)

    @torch.no_grad()
    def reclaim(self) -> None:
        """Copy the module's current values into the buffers, and bind these to their names."""
        self.unfit = []
        for first, places in self._places.items():
            # Several, by identity, if names of one buffer were bound to different tensors.
            present = {holder._buffers.get(name) for holder, name in places}
            if present == {first}:
                continue
            value = present.pop()
            if present or value is None or (value.shape, value.dtype) != (first.shape, first.dtype):
                self.unfit.append(self.names[first])
                continue
            if value.device == first.device:
                first.copy_(value.clone())  # the value may be a view of the same memory
            else:
                first.data = value.data  # Module.to() binds new buffers on another device
            for holder, name in places:
                holder._buffers[name] = first

    @property
    def finding(self) -> Nonfinite:
        """Part of the health report about buffers."""
        return Nonfinite.UNFIT if self.unfit else Nonfinite.NOTHING

    def require_fit(self, statuses: Sequence[HealthReport]) -> None:
        """Check the reports of all ranks, with the same result on every rank. Does not communicate.

        Raises:
            ValueError: on every rank, if a rank has a buffer that cannot be reclaimed.

        """
        ranks = [i for i, status in enumerate(statuses) if status.nonfinite & Nonfinite.UNFIT]
        if not ranks:
            return
        names = ", ".join(map(repr, self.unfit)) or "its own error names them"
        raise ValueError(
            f"{named_ranks(ranks)} removed buffers during training, or "
            f"changed their shape or dtype ({names}): buffers are synchronised element by element. "
            "Use a plain attribute of the module for a tensor that changes its shape."
        )
