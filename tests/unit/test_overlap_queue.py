"""The steps at which an overlapped exchange waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_hier.algorithms.quantisation import Codec, QuantisedCodec
from lightning_hier.comm.blocks.sums import exact_sum, quantised_sum
from lightning_hier.comm.communicators import AcrossRoute
from lightning_hier.comm.stages import OverlapQueue

STEPS = 50


class Recorder:
    """Stands for a channel of two ranks and for its collectives; records the step of each wait."""

    size = 2

    def __init__(self) -> None:
        self.step = 0
        self.waits: list[int] = []

    def wait(self) -> None:
        self.waits.append(self.step)

    def _started(self, *_: Any) -> Recorder:
        return self

    all_reduce_ = all_to_all = broadcast_ = _started

    def reduce_(self, *_: Any) -> Any:
        return Recorder()  # waits for the sums inside a host do not count


def waits_of(
    chunks: int, codec: Codec | None, *, hosts_are_shared: bool
) -> tuple[list[int], list[int]]:
    """Steps of the waits of sums for collectives between hosts, and for copies inside them."""
    between, host = Recorder(), Recorder()
    channels: Any = {"between": between, "host": host if hosts_are_shared else None}
    route = AcrossRoute(**channels, inter_host_ranks=2, hosts_are_shared=hosts_are_shared)
    pieces = [torch.zeros(4) for _ in range(chunks)]
    sums = [
        exact_sum(piece, route) if codec is None else quantised_sum(piece, route, codec, None)
        for piece in pieces
    ]
    queue = OverlapQueue()
    queue.add(sums, at_once=8, steps=STEPS)
    assert not between.waits
    for step in range(1, STEPS + 1):
        between.step = host.step = step
        queue.step()
    return between.waits, host.waits


@pytest.mark.parametrize("hosts_are_shared", [True, False])
@pytest.mark.parametrize("codec", [None, QuantisedCodec(8)], ids=["exact", "int8"])
@pytest.mark.parametrize("chunks", [7, 49, 400])
def test_exchanges_are_awaited_over_nearly_all_steps(
    chunks: int, codec: Codec | None, hosts_are_shared: bool
) -> None:
    """A link that needs all steps is idle in the last 15% at most. Copies end with the last step.

    Behind the last exchange there are the copies of three rounds of eight chunks at most.
    """
    between, inside = waits_of(chunks, codec, hosts_are_shared=hosts_are_shared)
    assert len(between) == chunks * (1 if codec is None else 2)
    assert len(inside) == (chunks if hosts_are_shared else 0)
    assert between == sorted(between)
    assert [*between, *inside][-1] == STEPS
    assert between[-1] >= 0.85 * STEPS
    most = max(between.count(step) for step in between)
    assert most <= 1.2 * len(between) / STEPS + 1
