"""Values of the local model while the module holds the global one for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lightning_hier.algorithms.fingerprint import fingerprints
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.trained import TrainedTensors
from lightning_hier.comm.profiling import profiler_range


class SavedTensors:
    """Copies of tensors that hold other values during evaluation.

    Attributes:
        used: whether the tensors hold other values at present.

    """

    def __init__(self) -> None:
        self._saved: dict[Tensor, Tensor] = {}
        self._fingerprints: dict[Tensor, int] = {}
        self.used = False

    def save(self, tensors: Iterable[Tensor]) -> None:
        """Save the present values of ``tensors``."""
        self._saved = {tensor: tensor.detach().clone() for tensor in tensors}
        self.used = True

    @contextmanager
    def overwriting(self, tensors: Iterable[Tensor], *, watch: bool = False) -> Iterator[None]:
        """Save ``tensors`` while the body writes other values; restore them if it fails.

        Args:
            tensors: tensors to save.
            watch: whether :meth:`written` finds later writes. Version counters would not do:
                ``tensor.data`` has its own, and writing a value back is no change.

        """
        self.save(tensors)
        try:
            yield
        except BaseException:
            self.restore()
            raise
        watched = list(self._saved) if watch else []
        self._fingerprints = dict(zip(watched, fingerprints(watched), strict=True))

    def written(self) -> list[Tensor]:
        """Tensors whose bits have changed since the other values were written."""
        pairs = zip(self._fingerprints.items(), fingerprints(list(self._fingerprints)), strict=True)
        return [tensor for (tensor, before), after in pairs if before != after]

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Leave the present values of ``tensors`` in place; :meth:`restore` skips them."""
        for tensor in tensors:
            self._saved.pop(tensor, None)
            self._fingerprints.pop(tensor, None)

    def keep_all(self) -> None:
        """Leave all present values in place."""
        self._saved, self._fingerprints = {}, {}

    def restore(self) -> None:
        """Copy the saved values back."""
        if self._saved:
            targets = [tensor.detach() for tensor in self._saved]
            with profiler_range("hier/global_model/swap_back"):
                torch._foreach_copy_(targets, list(self._saved.values()))
        self.forget()

    def forget(self) -> None:
        """Drop the saved values."""
        self.keep_all()
        self.used = False

    def local(self, tensor: Tensor) -> Tensor:
        """The saved value of a tensor, or its present one if none is saved; not a copy."""
        return self._saved.get(tensor, tensor.detach())


class LocalValues:
    """Values of the local model, in the module or saved. Communicates nothing.

    Args:
        trained: parameters and buffers of the module.
        models: local models of this rank. Only the values of the first one are ever saved.

    Attributes:
        saved: values that the global model has replaced in the module.

    """

    def __init__(self, trained: TrainedTensors, models: LocalModels) -> None:
        self._trained = trained
        self._models = models
        self.saved = SavedTensors()

    def all(self) -> dict[Tensor, Tensor]:
        """Trainable parameters and buffers with their local values; not copied."""
        return {own: self._of(own) for own in self._trained.tensors()}

    def buffers(self) -> dict[str, Tensor]:
        """Local values of the buffers by name; not copied."""
        self._models.buffers.reclaim()
        return {name: self._of(own) for own, name in self._models.buffers.names.items()}

    @torch.no_grad()
    def keep_written_buffers(self) -> None:
        """Make what hooks wrote into buffers of the global model part of all local models.

        Raises:
            RuntimeError: a hook wrote into a trained parameter. Its local value would replace it.

        """
        self._models.buffers.reclaim()
        written = self.saved.written()
        names = self._trained.names(written)
        if names:
            raise RuntimeError(
                f"a hook wrote into trained parameters ({', '.join(names)}) while the module held "
                "the global model (from validation or the end of an epoch until the next batch "
                "starts): training continues from the local model, so the write would be lost. "
                "Write the same on all ranks in on_train_batch_start or on_train_batch_end instead "
                "(with virtual_workers in training_step), when the module holds the local model. "
                "Buffers and frozen parameters may be written in any hook."
            )
        self.saved.keep(written)
        values = [(tensor, tensor.data) for tensor in written]
        for _ in self._models.others() if values else ():
            for tensor, value in values:
                tensor.copy_(value)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load a local model in the body; the module holds its present values afterwards."""
        # Parameters that are frozen now may have been trained by the run that is loaded.
        tensors = self._trained.tensors(also_frozen=True)
        present = {tensor: tensor.detach().clone() for tensor in tensors}
        yield
        with self.saved.overwriting(present, watch=True):
            for tensor, value in present.items():
                tensor.detach().copy_(value)

    def _of(self, tensor: Tensor) -> Tensor:
        return self.saved.local(tensor) if self._models.current == 0 else tensor.detach()
