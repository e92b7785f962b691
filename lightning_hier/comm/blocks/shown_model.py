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

    def take_written(self) -> list[Tensor]:
        """Let go of those tensors that hold something else than what was shown, and give them."""
        written = [own for own, shown in self._shown.items() if not _same(own.detach(), shown)]
        for tensor in written:
            del self._saved[tensor]
        return written

    def forget(self) -> None:
        """Drop all values."""
        super().forget()
        self._shown = {}


def _same(one: Tensor, other: Tensor) -> bool:
    if torch.equal(one, other):
        return True
    floating = one.is_floating_point() or one.is_complex()
    return floating and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
