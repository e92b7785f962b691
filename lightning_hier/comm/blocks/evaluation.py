"""Evaluation: the module contains the global model, and the local model afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.comm.blocks.health import SyncPoint
from lightning_hier.comm.blocks.saved_tensors import SavedTensors
from lightning_hier.comm.broadcast import broadcast_buffers_
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.sharded_tensors import local_tensor, reshard_

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser


class Evaluation:
    """Swaps the global model into the module and the local model back.

    The local model is in the module, or saved while the module contains the global model.

    Args:
        model: what is synchronised.

    """

    def __init__(self, model: BlockSynchroniser) -> None:
        self._model = model
        self._saved = SavedTensors()
        self._ended = False

    @property
    def active(self) -> bool:
        """Whether the module contains the global model and the local model is saved."""
        return self._saved.used

    def swap_in_global_model(self) -> None:
        """Save the local model and write the global one into the module, in place.

        A collective of the world. Does nothing if the module already contains the global model.
        """
        self._model.buffers.reclaim()
        if not self.active:
            self._write_global_model(SyncPoint.EVALUATION)

    def swap_back(self) -> None:
        """Restore the local model, bit for bit. Does nothing if it is already in the module.

        Buffers keep values that hooks have written.

        Raises:
            RuntimeError: a hook has written to a trained parameter.

        """
        if not self.active or self._ended:
            return
        # Training would otherwise use weights gathered in the evaluation.
        reshard_(self._model.module)
        self.keep_written_buffers()
        self._saved.restore()

    def keep_written_buffers(self) -> None:
        """Keep what hooks have written to buffers of the global model. Does not communicate.

        Raises:
            RuntimeError: a hook wrote to a trained parameter, whose local value would replace it.

        """
        self._model.buffers.reclaim()
        written = self._saved.written()
        names = self._model.trained.names(written)
        if names:
            raise RuntimeError(
                f"a hook wrote to trained parameters ({', '.join(names)}) while the module held "
                "the global model (from validation or the end of an epoch until the next batch "
                "starts, or in blocks.global_model()): training continues from the local model, so "
                "the write would be lost. Write the same values on all ranks in "
                "on_train_batch_start or on_train_batch_end instead, or outside of that context. "
                "Hooks may write to buffers and frozen parameters at any time."
            )
        self._saved.keep(written)

    def state(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call ``read`` while the module contains the global model. A collective of the world."""
        if self.active:  # a callback saves while the module contains the global model
            return read()
        with profiler_range("hier/global_model/swap_in"):
            self.swap_in_global_model()
        try:
            state = read()
            if self.active:
                # The local model will be swapped back into the module.
                state = {
                    name: value.detach().clone() if isinstance(value, Tensor) else value
                    for name, value in state.items()
                }
        finally:
            if self.active:
                self.swap_back()
        return state

    def end_training(self) -> None:
        """Synchronise the last, short blocks and leave the global model in the module.

        A collective of the world. The local model remains saved for a checkpoint after training.
        """
        self.swap_back()  # the last blocks are synchronised from the local model
        self._model.finish_blocks()
        self._write_global_model(SyncPoint.TRAINING_END)
        self._ended = True

    def forget(self) -> None:
        """Discard the saved local model before an older state is loaded."""
        self._saved.forget()
        self._ended = False

    def local_parameters(self) -> dict[Parameter, Tensor]:
        """Values of trained parameters in the local model, not copied. Does not communicate."""
        trained = self._model.trained
        # In the order of the module, which a set does not have.
        names = trained.known.names
        return {p: self._saved.local(p) for p in names if p in trained.parameters}

    def local_buffers(self) -> dict[str, Tensor]:
        """Those of buffers, and of what this rank has found, by name."""
        self._model.trained.note()
        names = self._model.buffers.names | self._model.trained.found
        return {name: self._saved.local(buffer) for buffer, name in names.items()}

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load a local model in the body. Afterwards the module has its current values again.

        Does not communicate.
        """
        # The saved run may have trained parameters that are frozen now.
        self._model.buffers.reclaim()
        tensors = [*self._model.trained.known.names, *self._model.buffers.tensors]
        present = {tensor: local_tensor(tensor).clone() for tensor in tensors}
        yield
        # As in an evaluation: the loaded model is the one that is saved and swapped back.
        with self._saved.overwriting(present, watch=True):
            for tensor, value in present.items():
                local_tensor(tensor).copy_(value)

    @torch.inference_mode(False)  # optimizer state that is created here is used in training
    @torch.no_grad()
    def _write_global_model(self, point: SyncPoint) -> None:
        model = self._model
        reshard_(model.module)
        model.buffers.reclaim()
        # Between the warm-up and the first step: the blocks that this step will start.
        blocks = () if model.warming else model.present_blocks()
        # Without blocks all ranks train one model, and only buffers and residuals can differ.
        shared, buffers = model.worker.memory.shared, model.buffers.tensors
        overwritten = [t for b in blocks for t in b.members.tensors] or [*shared, *buffers]
        # After the end of training, hooks may write to any tensor.
        watch = point != SyncPoint.TRAINING_END
        saved = self._saved.overwriting(overwritten, watch=watch)
        progress = model.communicators.progress.at(point.text, model.health.detail)
        with saved, progress:
            model.worker.memory.write_shared()
            if not model.health.independent:
                # Steps of other ranks may wait for this rank's part of an overlapped exchange.
                model.communicators.route.in_flight.finish()
            # The same on all ranks: blocks follow from the settings and from the warm-up.
            if not blocks:
                model.health.check(point)
                self._saved.add(model.admit_found())
                broadcast_buffers_(model.buffers.tensors, model.communicators)
            for index in range(len(blocks)):
                averaging = model.health.agree(point, index, blocks[index].read())
                if found := model.admit_found():
                    self._saved.add(found)
                    blocks = model.present_blocks()
                    averaging = model.health.agree(point, index, blocks[index].read())
                blocks[index].write_global_model(averaging)
