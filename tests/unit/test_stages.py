"""The order in which chunks start their stages does not depend on completion times."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.comm.stages import Due, OverlapQueue, Pipeline, Scheduled, Stages


class _Message:
    """A collective that records its start and the wait for it."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name
        log.append(f"start {name}")

    def wait(self) -> None:
        self._log.append(f"wait {self._name}")


def _chunk(log: list[str], started: list[_Message], name: int, stages: int) -> Stages:
    for stage in range(stages):
        message = _Message(log, f"{name}.{stage}")
        started.append(message)
        yield cast(Any, [message])
    log.append(f"end {name}")


def _starts(log: list[str]) -> list[str]:
    return [line for line in log if line.startswith("start")]


@given(chunks=st.integers(0, 12), stages=st.integers(0, 4), data=st.data())
def test_order_of_starts_is_that_of_a_run_that_waits(
    chunks: int, stages: int, data: st.DataObject
) -> None:
    plain: list[str] = []
    Pipeline(_chunk(plain, [], i, stages) for i in range(chunks)).run()
    assert len(_starts(plain)) == chunks * stages
    assert sorted(line for line in plain if "end" in line) == sorted(
        f"end {i}" for i in range(chunks)
    )

    log: list[str] = []
    work = Pipeline(_planned(log, i, stages) for i in range(chunks))
    waited = 0
    for due in data.draw(st.lists(st.integers(-1, 5), max_size=10)):
        before = waited
        waited += work.run(due)
        assert waited - before <= max(due, 0)
    assert waited + work.run() == chunks * stages and work.finished
    assert _starts(log) == _starts(plain)


def _planned(log: list[str], name: int, stages: int) -> Scheduled:
    return Scheduled((Due(own) for own in _chunk(log, [], name, stages)), due=stages)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    stages=st.integers(1, 3),
    steps=st.integers(1, 12),
)
def test_waits_for_queued_work_are_spread_evenly_over_its_steps(
    sizes: list[int], stages: int, steps: int
) -> None:
    """Work that is added together shares the steps. Later work has its own steps."""
    log: list[str] = []
    queue = OverlapQueue()
    for number, size in enumerate(sizes):
        chunks = [_planned(log, 100 * number + i, stages) for i in range(size)]
        queue.add(chunks, at_once=2, steps=steps)
    total = sum(sizes) * stages
    for step in range(1, steps + 1):
        waited = len([line for line in log if "wait" in line])
        assert waited == sum(size * stages * (step - 1) // steps for size in sizes)
        queue.step()
    assert len([line for line in log if "wait" in line]) == total
    queue.add([_planned(log, 999, stages)], at_once=2, steps=steps)
    assert len([line for line in log if "wait" in line]) == total
    queue.finish()
    assert log[-1] == "end 999"
