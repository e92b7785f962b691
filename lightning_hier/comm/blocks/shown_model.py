"""The local model while the module shows the global one, and what hooks write into that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_hier.comm.blocks.aside import Aside


class ShownModel(Aside):
    """Puts local values aside, and keeps what is written over the values that are shown instead.

    Values are compared, and not the counters of writes: ``tensor.data`` has a counter of its own,
    and who writes another model and then the shown one back has changed nothing.
    """

    def __init__(self) -> None:
        """Nothing is aside."""
        super().__init__()
        self._shown: dict[Tensor, Tensor] = {}

    def note_shown(self) -> None:
        """Remember the present values of what is aside as those that are shown."""
        self._shown = {tensor: tensor.detach().clone() for tensor in self._saved}

    @contextmanager
    def behind(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Go on showing the present values; what is written meanwhile goes aside."""
        shown = {tensor: tensor.detach().clone() for tensor in tensors}
        yield
        self.put(shown)
        for tensor, value in shown.items():
            tensor.detach().copy_(value)
        self._shown = shown

    def written(self) -> list[Tensor]:
        """Those tensors that hold something else than what was shown."""
        return [own for own, shown in self._shown.items() if not same(own.detach(), shown)]

    def take_written(self) -> list[Tensor]:
        """As :meth:`written`; their local values are let go of."""
        written = self.written()
        for tensor in written:
            del self._saved[tensor]
        return written

    def local(self, tensor: Tensor) -> Tensor:
        """The local value, which is what was written where something was; not copied."""
        shown = self._shown.get(tensor)
        if shown is None or same(tensor.detach(), shown):
            return super().local(tensor)
        return tensor.detach()

    def forget(self) -> None:
        """Drop all values."""
        super().forget()
        self._shown = {}


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values; NaN is NaN."""
    one = one.to(other.device)  # after training Lightning moves the module to the host
    if torch.equal(one, other):
        return True
    floating = one.is_floating_point() or one.is_complex()
    return floating and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
