"""The order lock of two-stage ASGD, with nodes that leave and join in any order."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.parameter_server.two_stage.pushes import OrderLock


@given(st.data(), st.integers(1, 5), st.integers(1, 30))
def test_every_node_pushes_once_between_two_pushes_of_another(
    data: st.DataObject, nodes: int, length: int
) -> None:
    """This bounds the staleness by the number of nodes minus one, while both nodes take part."""
    lock = OrderLock(range(nodes))
    pushes: list[int] = []
    left: set[int] = set()
    for _ in range(length):
        able = lock.waited_for()
        if not able:
            break
        node = data.draw(st.sampled_from(able))
        lock.pushed(node)
        pushes.append(node)
        if len(left) < nodes - 1 and data.draw(st.integers(0, 9)) == 0:
            leaver = data.draw(st.sampled_from(sorted(set(range(nodes)) - left)))
            lock.leave(leaver)
            left.add(leaver)
    stayed = set(range(nodes)) - left
    for node in stayed:
        times = [time for time, pushed in enumerate(pushes) if pushed == node]
        for earlier, later in pairwise(times):
            between = pushes[earlier + 1 : later]
            assert stayed - {node} <= set(between)
            assert len(set(between)) == len(between)


def test_node_that_left_is_skipped_and_keeps_its_place() -> None:
    lock = OrderLock([0, 1, 2])
    for node in (2, 1, 0, 2):
        lock.pushed(node)
    lock.leave(1)
    assert lock.waited_for() == [0]
    lock.pushed(0)
    lock.leave(2)
    assert lock.waited_for() == [0]
    lock.leave(0)
    assert lock.waited_for() == []
    lock.reopen([0, 1, 2])
    assert lock.order == [2, 1, 0] and lock.waited_for() == [2]
