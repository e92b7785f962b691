"""The steps at which an overlapped exchange waits."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hier.comm.stages import Due, DueOnHost, OverlapQueue, Scheduled, Stages

STEPS = 50


class Recorded:
    """Stands for a collective, and records the step at which it is awaited."""

    def __init__(self, waits: list[int], step: list[int]) -> None:
        self._waits, self._step = waits, step

    def wait(self) -> None:
        self._waits.append(self._step[0])


def waits_of(chunks: int, exchanges: int, *, hosts_are_shared: bool) -> tuple[list[int], list[int]]:
    """Steps of the waits between hosts and inside them, of chunks with the stages of a sum."""
    between: list[int] = []
    inside: list[int] = []
    step = [0]

    def stages() -> Stages:
        yield []
        for number in range(2):
            yield []
            one: Any = Recorded(between, step)
            yield Due([one]) if number < exchanges else []
        copy: Any = Recorded(inside, step)
        yield DueOnHost([copy]) if hosts_are_shared else [copy]

    due = exchanges * Due.units + hosts_are_shared * DueOnHost.units
    queue = OverlapQueue()
    queue.add([Scheduled(stages(), due=due) for _ in range(chunks)], at_once=8, steps=STEPS)
    assert not between
    for step[0] in range(1, STEPS + 1):
        queue.step()
    return between, inside


@pytest.mark.parametrize("hosts_are_shared", [True, False])
@pytest.mark.parametrize("exchanges", [1, 2])
@pytest.mark.parametrize("chunks", [7, 49, 400])
def test_exchanges_are_awaited_over_nearly_all_steps(
    chunks: int, exchanges: int, hosts_are_shared: bool
) -> None:
    """A link that needs all steps is idle in the last 15% at most. Copies end with the last step.

    Behind the last exchange there are the copies of three rounds of eight chunks at most.
    """
    between, inside = waits_of(chunks, exchanges, hosts_are_shared=hosts_are_shared)
    assert len(between) == chunks * exchanges and len(inside) == chunks
    assert between == sorted(between) and inside[-1] == STEPS
    assert between[-1] >= 0.85 * STEPS
    most = max(between.count(step) for step in between)
    assert most <= 1.2 * len(between) / STEPS + 1
