"""Evaluation: the module contains the global model, and the local model afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightning_hier.comm.blocks.health import SyncPoint
from lightning_hier.comm.blocks.synchronised_model import SynchronisedModel
from lightning_hier.comm.broadcast import broadcast_tensors_
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.sharded_tensors import reshard_


class Evaluation:
    """Swaps the global model into the module and the local model back.

    Args:
        model: what is synchronised.
        finish_blocks: synchronises the last, short blocks, if the global model of the evaluation
            does not contain them.

    """

    def __init__(self, model: SynchronisedModel, *, finish_blocks: Callable[[], None]) -> None:
        self._model = model
        self._finish_blocks = finish_blocks
        self._ended = False

    @property
    def active(self) -> bool:
        """Whether the module contains the global model and the local model is saved."""
        return self._model.local.saved.used

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
        self._model.local.keep_written_buffers()
        self._model.local.saved.restore()

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
        self._finish_blocks()
        self._write_global_model(SyncPoint.TRAINING_END)
        self._ended = True

    def forget(self) -> None:
        """Discard the saved local model before an older state is loaded."""
        self._model.local.saved.forget()
        self._ended = False

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
        saved = model.local.saved.overwriting(overwritten, watch=watch)
        progress = model.communicators.progress.at(point.text, model.health.detail)
        with saved, progress:
            model.worker.memory.write_shared()
            if not model.health.independent:
                # Steps of other ranks may wait for this rank's part of an overlapped exchange.
                model.communicators.route.in_flight.finish()
            # The same on all ranks: blocks follow from the settings and from the warm-up.
            if not blocks:
                model.health.check(point)
                model.local.saved.add(model.admit_found())
                self._share_buffers()
            for index in range(len(blocks)):
                averaging = model.health.agree(point, index, blocks[index].read())
                if found := model.admit_found():
                    model.local.saved.add(found)
                    blocks = model.present_blocks()
                    averaging = model.health.agree(point, index, blocks[index].read())
                blocks[index].write_global_model(averaging)

    def _share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0 or, of divided ones, those of the first group."""
        tensors, communicators = self._model.buffers.tensors, self._model.communicators
        whole = [tensor for tensor in tensors if not isinstance(tensor, DTensor)]
        parts = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
        broadcast_tensors_(whole, communicators.world, "buffers")
        broadcast_tensors_(parts, communicators.across, "buffers")
