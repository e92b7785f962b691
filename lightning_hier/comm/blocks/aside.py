"""Local values of a module's tensors while it shows other ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_hier.comm.profiling import profiler_range


class Aside:
    """Copies of tensors that a look changes; all of them in place, to the last bit."""

    def __init__(self) -> None:
        """Nothing is aside."""
        self._saved: dict[Tensor, Tensor] = {}
        self.used = False

    def put(self, tensors: Iterable[Tensor]) -> None:
        """Keep the present values of ``tensors``."""
        self._saved = {tensor: tensor.detach().clone() for tensor in tensors}
        self.used = True

    @contextmanager
    def putting(self, tensors: Iterable[Tensor]) -> Iterator[None]:
        """Keep the present values while others are written; if that fails, put them back."""
        self.put(tensors)
        try:
            yield
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put the values back."""
        if self._saved:
            targets = [tensor.detach() for tensor in self._saved]
            with profiler_range("hier/global_model/swap_back"):
                torch._foreach_copy_(targets, list(self._saved.values()))
        self.forget()

    def forget(self) -> None:
        """Drop the values."""
        self._saved = {}
        self.used = False

    def local(self, tensor: Tensor) -> Tensor:
        """The local value of a tensor, be it aside or in place; not copied."""
        return self._saved.get(tensor, tensor.detach())
