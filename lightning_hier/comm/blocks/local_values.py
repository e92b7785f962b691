"""Values of the local model while the module contains the global model for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.blocks.trained import TrainedTensors
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

    def save(self, tensors: Iterable[Tensor]) -> None:
        """Save the current values of ``tensors``."""
        self._saved = {tensor: local_tensor(tensor).clone() for tensor in tensors}
        self.used = True

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
        self.save(tensors)
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


class LocalValues:
    """Values of the local model, in the module or saved. Does not communicate.

    Args:
        trained: parameters and buffers of the module.
        buffers: buffers of the module.

    Attributes:
        saved: values that the global model has replaced in the module.

    """

    def __init__(self, trained: TrainedTensors, buffers: ModuleBuffers) -> None:
        self._trained = trained
        self._buffers = buffers
        self.saved = SavedTensors()

    def parameters(self) -> dict[Parameter, Tensor]:
        """Local values of trained parameters, not copied."""
        trained = self._trained
        # In the order of the module, which a set does not have.
        names = trained.known.names
        return {p: self.saved.local(p) for p in names if p in trained.parameters}

    def buffers(self) -> dict[str, Tensor]:
        """Local values of buffers, and of what this rank has found, by name, not copied."""
        self._trained.note()
        names = self._buffers.names | self._trained.found
        return {name: self.saved.local(buffer) for buffer, name in names.items()}

    def keep_written_buffers(self) -> None:
        """Keep what hooks have written to buffers of the global model.

        Raises:
            RuntimeError: a hook wrote to a trained parameter, whose local value would replace it.

        """
        self._buffers.reclaim()
        written = self.saved.written()
        names = self._trained.names(written)
        if names:
            raise RuntimeError(
                f"a hook wrote to trained parameters ({', '.join(names)}) while the module held "
                "the global model (from validation or the end of an epoch until the next batch "
                "starts, or in blocks.global_model()): training continues from the local model, so "
                "the write would be lost. Write the same values on all ranks in "
                "on_train_batch_start or on_train_batch_end instead, or outside of that context. "
                "Hooks may write to buffers and frozen parameters at any time."
            )
        self.saved.keep(written)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load a local model in the body. Afterwards the module has its current values again."""
        # The saved run may have trained parameters that are frozen now.
        self._buffers.reclaim()
        tensors = [*self._trained.known.names, *self._buffers.tensors]
        present = {tensor: local_tensor(tensor).clone() for tensor in tensors}
        yield
        # As in an evaluation: the loaded model is the one that is saved and swapped back.
        with self.saved.overwriting(present, watch=True):
            for tensor, value in present.items():
                local_tensor(tensor).copy_(value)


def _bits(tensors: Iterable[Tensor]) -> list[int]:
    return fingerprints([local_tensor(tensor) for tensor in tensors])
