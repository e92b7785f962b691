"""An outer step whose state lies in the memory of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hier.algorithms.kernels import sum_of_squares
from lightning_hier.algorithms.kernels.reference import SumOfSquares
from lightning_hier.comm.blocks.outer_step import OuterStep

_ALL = slice(None)


class OffloadedStep(OuterStep):
    """Keeps W and the state of an outer step on the host, and steps on the device of the model.

    Every method copies the vectors of its range to the device, and :meth:`apply_` copies them back
    (``docs/model_parallel.md``). So the device holds the vectors of one range at a time, which is a
    chunk of the shard. The numbers are those of the wrapped step, bit for bit. If the model is on a
    GPU, the memory of the host is pinned, so that copies have the full rate of the bus. They block,
    because a checkpoint may read the vectors at once.

    Args:
        step: the outer step, with vectors on the host. It must not be used otherwise afterwards.
        device: device of the model.

    """

    def __init__(self, step: OuterStep, device: torch.device) -> None:
        step.vectors = {name: _pinned(vector, device) for name, vector in step.vectors.items()}
        super().__init__(step.vectors["global_model"], from_updates=step.from_updates)
        self.vectors = step.vectors  # the same dictionary, so that both have the loaded vectors
        self._step = step
        self._device = device

    @override
    def start_model(self, place: slice) -> Tensor:
        return self.preview(place).start_model(_ALL)

    @override
    def prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        # Whole models are averaged without a start model, so nothing is copied to the device.
        if not self.from_updates:
            return sum_of_squares(model)
        return self.preview(place).prepare_(model, _ALL)

    @override
    def set_models(self, effective: float) -> None:
        self._step.set_models(effective)

    @override
    def apply_(self, mean: Tensor, place: slice) -> tuple[SumOfSquares, SumOfSquares]:
        ahead = self.preview(place)
        squares = ahead.apply_(mean, slice(0, len(mean)))
        self._step.keep_(ahead, place)  # copies the vectors back to the host
        return squares

    @override
    def preview(self, place: slice, device: torch.device | None = None) -> OuterStep:
        return self._step.preview(place, device or self._device)

    @override
    def stored(self, values: Tensor) -> Tensor:
        return host_copy(values)

    @override
    def adopt(self, saved: Mapping[str, Any], model: Tensor, *, pending: bool) -> dict[str, Any]:
        return self._step.adopt(saved, model, pending=pending)

    @override
    def settings(self) -> dict[str, Any]:
        return self._step.settings()

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._step.load(state)


def host_copy(values: Tensor) -> Tensor:
    """A copy in the memory of the host, pinned if ``values`` are on a GPU."""
    return _pinned(values.to("cpu", copy=True), values.device)


def _pinned(values: Tensor, device: torch.device) -> Tensor:
    return values.pin_memory() if device.type == "cuda" and values.numel() else values
