"""Buffers of a module, kept as the same tensors even if the module rebinds their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Module, Parameter

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
        names: first name of each tensor that is synchronised as a buffer. Frozen parameters that
            are written are added to it.
        unfit: names of buffers that cannot be reclaimed because they were removed, have another
            shape or dtype, or had several names that are no longer bound to the same tensor.

    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._paths: dict[Tensor, list[str]] = {}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            self._paths.setdefault(buffer, []).append(name)
        self.names = {buffer: paths[0] for buffer, paths in self._paths.items()}
        self.unfit: list[str] = []

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors of ``names``, without duplicates."""
        return list(self.names)

    def registered_since(self) -> dict[Tensor, str]:
        """Persistent buffers that the module has registered since then, with their names.

        Others are not part of the model: masks and tables that a forward pass computes, perhaps
        with a length that depends on the batch.
        """
        known = {path for paths in self._paths.values() for path in paths}
        return {
            holder._buffers[own]: name  # type: ignore[misc]
            for name, (holder, own) in self._places().items()
            if name not in known and own not in holder._non_persistent_buffers_set
        }

    def add(self, tensors: Mapping[Tensor, str]) -> None:
        """Add the result of :meth:`registered_since`, or frozen parameters."""
        self.names.update(tensors)
        self._paths |= {t: [name] for t, name in tensors.items() if not isinstance(t, Parameter)}

    @torch.no_grad()
    def reclaim(self) -> None:
        """Copy the module's current values into the buffers, and bind these to their names."""
        self.unfit = []
        present = self._places()
        for first, paths in self._paths.items():
            # By name, because a layer may have been replaced. A removed buffer has None.
            places = [present.get(path, (self._module, "")) for path in paths]
            # Several, by identity, if names of one buffer were bound to different tensors.
            values = {holder._buffers.get(name) for holder, name in places}
            if values == {first}:
                continue
            value = values.pop()
            if values or value is None or (value.shape, value.dtype) != (first.shape, first.dtype):
                self.unfit.append(self.names[first])
                continue
            if value.device == first.device:
                first.copy_(value.clone())  # the value may be a view of the same memory
            else:
                first.data = value.data  # Module.to() binds new buffers on another device
            for holder, name in places:
                holder._buffers[name] = first

    def _places(self) -> dict[str, tuple[Module, str]]:
        """The module and the own name of each buffer, by its whole name."""
        return {
            f"{path}.{name}".lstrip("."): (holder, name)
            for path, holder in self._module.named_modules(remove_duplicate=False)
            for name, buffer in holder._buffers.items()
            if buffer is not None
        }

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
