"""Copies of tensors that an evaluation overwrites, to restore them afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.sharded_tensors import local_tensor


class SavedTensors:
    """Copies of tensors that are overwritten during evaluation.

    Attributes:
        used: whether the tensors are overwritten now.

    """

    def __init__(self) -> None:
        self._saved: dict[Tensor, Tensor] = {}
        self._fingerprints: dict[Tensor, int] = {}
        self.used = False

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Save the current values of further tensors."""
        self._saved |= {tensor: local_tensor(tensor).clone() for tensor in tensors}

    @contextmanager
    def overwriting(self, tensors: Iterable[Tensor], *, watch: bool = False) -> Iterator[None]:
        """Save ``tensors``, which the body overwrites. Restore them if it fails.

        Args:
            tensors: tensors to save.
            watch: whether :meth:`written` detects later writes. It compares bits instead of version
                counters, because ``tensor.data`` has a separate counter, and writing the same value
                is not a change.

        """
        self._saved, self.used = {}, True
        self.add(tensors)
        try:
            yield
        except BaseException:
            self.restore()
            raise
        # After the body: the fingerprints of the values that must not change from now on.
        watched = list(self._saved) if watch else []
        self._fingerprints = dict(zip(watched, _bits(watched), strict=True))

    def written(self) -> list[Tensor]:
        """Tensors whose bits have changed since the other values were written."""
        pairs = zip(self._fingerprints.items(), _bits(self._fingerprints), strict=True)
        return [tensor for (tensor, before), after in pairs if before != after]

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep the current values of ``tensors``, which :meth:`restore` then skips."""
        for tensor in tensors:
            self._saved.pop(tensor, None)
            self._fingerprints.pop(tensor, None)

    def restore(self) -> None:
        """Copy the saved values back."""
        if self._saved:
            targets = [local_tensor(tensor) for tensor in self._saved]
            with profiler_range("hier/global_model/swap_back"):
                torch._foreach_copy_(targets, list(self._saved.values()))
        self.forget()

    def forget(self) -> None:
        """Discard the saved values."""
        self._saved, self._fingerprints = {}, {}
        self.used = False

    def local(self, tensor: Tensor) -> Tensor:
        """The saved value of a tensor, or the tensor itself if none is saved. Not a copy."""
        value = self._saved.get(tensor)
        return local_tensor(tensor) if value is None else value


def _bits(tensors: Iterable[Tensor]) -> list[int]:
    return fingerprints([local_tensor(tensor) for tensor in tensors])
