"""An outer step with vectors in host memory gives the results of one with device memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.algorithms.kernels.reference import SumOfSquares
from lightning_hier.comm.blocks.offloaded_step import OffloadedStep, host_copy
from lightning_hier.comm.blocks.outer_optimizer import OptimizerStep
from lightning_hier.comm.blocks.outer_step import BlockMomentumStep, OuterStep

_CPU, _CUDA, _META = (torch.device(kind) for kind in ("cpu", "cuda", "meta"))
_CHUNKS = [slice(0, 5), slice(5, 8)]


def _momentum(model: Tensor, from_updates: bool) -> OuterStep:
    return BlockMomentumStep(
        BlockFilter(eta=0.5),
        model,
        from_updates=from_updates,
        eta_of=(lambda effective: 1 - 1 / effective) if from_updates else None,
    )


_STEPS: dict[str, Callable[[Tensor], OuterStep]] = {
    "models": partial(_momentum, from_updates=False),
    "updates": partial(_momentum, from_updates=True),
    "sgd": partial(OptimizerStep, partial(torch.optim.SGD, lr=0.7, momentum=0.9)),
    "adam": partial(OptimizerStep, partial(torch.optim.Adam, lr=0.1)),
}


def _rounded(*sums: SumOfSquares) -> Tensor:
    """Sums in float32, because the order of additions on a device depends on addresses."""
    return torch.tensor([float(own) for own in sums])


def _advance(step: OuterStep, blocks: int, device: torch.device) -> list[Tensor]:
    """Start models of some blocks, their previews, and the returned sums of squares."""
    generator, results = torch.Generator().manual_seed(3), []
    for block in range(blocks):
        values = torch.randn(8, generator=generator, dtype=torch.float64).to(device)
        for place in _CHUNKS:
            own = values[place]
            results.append(_rounded(step.prepare_(own, place)))
            step.set_models(2.0 + block)
            ahead, mean = step.preview(place), own.clone()
            results.append(_rounded(*ahead.apply_(mean, slice(0, len(mean)))))
            results += [mean, _rounded(*step.apply_(own, place)), step.start_model(place).clone()]
    return results


@pytest.mark.parametrize("device", [_CPU, pytest.param(_CUDA, marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("name", _STEPS)
def test_results_are_equal_bit_for_bit(name: str, device: torch.device) -> None:
    """They are also equal after the state of one is loaded into the other."""
    start = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64)

    def both() -> tuple[OuterStep, OuterStep]:
        model = start.to(device, copy=True)
        return _STEPS[name](model), OffloadedStep(_STEPS[name](host_copy(model)), device)

    plain, offloaded = both()
    for _ in range(2):
        by_plain, by_offloaded = (_advance(step, 3, device) for step in (plain, offloaded))
        for one, other in zip(by_plain, by_offloaded, strict=True):
            assert torch.equal(one, other)
        assert plain.settings() == offloaded.settings()
        for vector, own in plain.vectors.items():
            copy = offloaded.vectors[vector]
            assert torch.equal(copy, own.cpu()) and copy.is_pinned() == (device == _CUDA)
        states = offloaded.state(), plain.state()
        plain, offloaded = both()
        for step, state in zip((plain, offloaded), states, strict=True):
            step.load(state)


class _Recording(OuterStep):
    """Records the device and the length of its vectors at each step, and sets W to 3."""

    recorded: list[tuple[torch.device, int]]

    @override
    def apply_(self, mean: Tensor, place: slice) -> tuple[float, float]:
        own = self.vectors["global_model"]
        self.recorded.append((own.device, len(own)))
        assert mean.device == own.device and place == slice(0, len(own))
        self.vectors = {"global_model": torch.full((len(own),), 3.0)}  # meta tensors have no values
        return 0.0, 0.0

    @override
    def start_model(self, place: slice) -> Tensor:
        return self.vectors["global_model"][place]


def test_chunks_are_stepped_on_the_device_of_the_model() -> None:
    """Vectors stay on the host. The device holds one chunk of them at a time."""
    step = _Recording(torch.zeros(8), from_updates=True)
    step.recorded = []
    offloaded = OffloadedStep(step, _META)
    for place in _CHUNKS:
        assert offloaded.start_model(place).device == _META
        offloaded.apply_(torch.empty(place.stop - place.start, device=_META), place)
    assert step.recorded == [(_META, 5), (_META, 3)]
    assert torch.equal(offloaded.vectors["global_model"], torch.full((8,), 3.0))
    assert offloaded.stored(torch.ones(2)).device == _CPU
