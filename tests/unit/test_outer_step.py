"""Outer steps by ranges, with vectors on the host, and in previews."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hier import BlockMomentum
from lightning_hier.algorithms.squares import SumOfSquares
from lightning_hier.comm.blocks.outer_step import OuterStep

_CHUNKS = [slice(0, 5), slice(5, 8)]

_STEPS: dict[str, Any] = {
    "models": partial(OuterStep, partial(BlockMomentum, block_momentum=0.5), from_updates=False),
    "updates": partial(
        OuterStep,
        partial(BlockMomentum, block_momentum=0.5),
        eta_of=lambda effective: 1 - 1 / effective,
    ),
    "sgd": partial(OuterStep, partial(torch.optim.SGD, lr=0.7, momentum=0.9)),
    "adam": partial(OuterStep, partial(torch.optim.Adam, lr=0.1)),
    "adagrad": partial(OuterStep, partial(torch.optim.Adagrad, initial_accumulator_value=0.1)),
}


def _rounded(*sums: SumOfSquares) -> Tensor:
    """Sums in float32, because the order of additions on a device depends on addresses."""
    return torch.tensor([float(own) for own in sums])


def _advance(step: OuterStep, blocks: int, device: torch.device) -> list[Tensor]:
    """Start models of some blocks, their previews, and the returned sums of squares."""
    generator, results = torch.Generator().manual_seed(3), []
    for block in range(blocks):
        values = torch.randn(8, generator=generator, dtype=torch.float64).to(device)
        results += [_rounded(step.prepare_(values[place], place)) for place in _CHUNKS]
        previews = [step.preview(place) for place in _CHUNKS]
        step.set_models(2.0 + block)
        for place, ahead in zip(_CHUNKS, previews, strict=True):
            own, mean = values[place], values[place].clone()
            ahead.set_models(2.0 + block)
            results.append(_rounded(*ahead.apply_(mean, slice(0, len(mean)))))
            results += [mean, _rounded(*step.apply_(own, place)), step.start_model(place).clone()]
            assert torch.equal(mean, own) and torch.equal(own, step.start_model(place))
    return results


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=str)
@pytest.mark.parametrize("name", _STEPS)
def test_offloaded_results_are_equal_bit_for_bit(name: str, device: str) -> None:
    own_device = torch.device(device)
    start = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64, device=own_device)
    plain, offloaded = _STEPS[name](start), _STEPS[name](start, offload=True)
    by_plain, by_offloaded = (_advance(step, 3, own_device) for step in (plain, offloaded))
    for one, other in zip(by_plain, by_offloaded, strict=True):
        assert torch.equal(one, other)
    assert plain.settings() == offloaded.settings()
    for vector, own in plain.vectors.items():
        copy = offloaded.vectors[vector]
        assert torch.equal(copy, own.cpu()) and copy.is_pinned() == (device == "cuda")


def test_vectors_lie_on_the_host() -> None:
    """A device without memory shows what is copied: ranges of the vectors, and not more."""
    step = OuterStep(BlockMomentum, torch.zeros(8), offload=True)
    step._device = torch.device("meta")
    assert {vector.device.type for vector in step.vectors.values()} == {"cpu"}
    assert step.stored(torch.ones(2, device="cpu")).device.type == "cpu"
    for place in _CHUNKS:
        start = step.start_model(place)
        assert start.device.type == "meta" and start.untyped_storage().nbytes() == 4 * len(start)
