"""Collectives of the live ranks give all of them the same result, also if ranks die."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.live_collectives import CollectiveLeader, LiveCollectives
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler, ServerLoop
from tests.unit.local_ports import LocalNetwork, LocalServerPort, LocalWatch, on_every_rank
from tests.waiting import WAIT_S, wait_until

WORLD = 4


def gather_on_all(network: LocalNetwork, work: Any, *, limit_s: float = 10.0) -> list[Any]:
    world = len(network.servers)

    def handlers(rank: int, port: LocalServerPort) -> list[Handler]:
        return [CollectiveLeader(world, port, limit_s=limit_s)]

    def run(rank: int, channel: RequestChannel) -> Any:
        return work(rank, LiveCollectives(world, channel))

    return on_every_rank(network, handlers, run)


def values(gathered: dict[int, Any]) -> dict[int, Any]:
    return {rank: one.value for rank, one in gathered.items()}


def test_all_ranks_get_all_contributions() -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        return [values(collectives.all_gather([rank, number])) for number in range(20)]

    expected = [{rank: [rank, number] for rank in range(WORLD)} for number in range(20)]
    assert gather_on_all(LocalNetwork(WORLD), work) == [expected] * WORLD


@pytest.mark.parametrize("reached", [[], [1], [1, 2], [1, 2, 3]])
def test_all_ranks_get_the_same_result_if_the_leader_dies_while_it_sends_it(
    reached: list[int],
) -> None:
    """The first result that each rank forwards to the next leader is lost."""
    network = LocalNetwork(WORLD)
    forwarded: set[int] = set()

    def lose(sender: int, to: int, message: Message) -> bool:
        # Only results that are sent to the new leader, rank 1, are lost.
        if sender == 0 or to != 1 or message.kind != Kind.RESULT or sender in forwarded:
            return False
        forwarded.add(sender)
        return True

    def refuse(sender: int, to: int, message: Message) -> bool:
        # Rank 0 dies when its second result has reached the ranks in `reached`.
        if sender == 0 and message.kind == Kind.RESULT and message.timestamp == 2:
            if to not in (0, *reached):
                network.cut_off[0] = "killed"
                return True
        return False

    network.refuse = refuse
    network.lose = lose

    def work(rank: int, collectives: LiveCollectives) -> Any:
        results = [values(collectives.all_gather(rank)) for _ in range(2)]
        if rank == 0:
            network.cut_off[0] = "killed"
            return results
        return [*results, values(collectives.all_gather(rank))]

    _, *others = gather_on_all(network, work)
    first, second, third = others[0]
    assert others == [[first, second, third]] * (WORLD - 1)
    assert first == {rank: rank for rank in range(WORLD)}
    assert set(second) == ({0, 1, 2, 3} if reached else {1, 2, 3})
    assert third == {1: 1, 2: 2, 3: 3}


def test_collective_does_not_wait_for_a_rank_that_died_before_its_contribution() -> None:
    network = LocalNetwork(WORLD)

    def work(rank: int, collectives: LiveCollectives) -> Any:
        if rank == 2:
            network.cut_off[2] = "killed"
            return None
        return values(collectives.all_gather(rank))

    results = gather_on_all(network, work)
    assert [results[rank] for rank in (0, 1, 3)] == [{0: 0, 1: 1, 3: 3}] * 3


@pytest.mark.parametrize("fate", ["lose", "refuse"])
def test_lost_messages_are_sent_again(fate: str) -> None:
    """In each collective, the first message of each kind between two ranks is lost."""
    network = LocalNetwork(WORLD)
    seen: set[tuple[int, int, Kind, int]] = set()

    def first(sender: int, to: int, message: Message) -> bool:
        key = sender, to, message.kind, message.timestamp
        if key in seen or sender == to:
            return False
        seen.add(key)
        return True

    setattr(network, fate, first)

    def run(rank: int, channel: RequestChannel) -> Any:
        collectives = LiveCollectives(WORLD, channel, retry_s=0.02)
        return [values(collectives.all_gather([rank, number])) for number in range(2)]

    def handlers(rank: int, port: LocalServerPort) -> list[Handler]:
        return [CollectiveLeader(WORLD, port, limit_s=WAIT_S)]

    expected = [{rank: [rank, number] for rank in range(WORLD)} for number in range(2)]
    assert on_every_rank(network, handlers, run, timeout_s=WAIT_S) == [expected] * WORLD


def test_error_of_the_other_ranks_names_the_missing_rank() -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        return None if rank == 3 else collectives.all_gather(rank)

    results = gather_on_all(LocalNetwork(WORLD), work, limit_s=2.0)
    for rank in range(3):
        assert isinstance(results[rank], PeerError)
        assert "in collective 1 of all ranks, for rank 3: see" in str(results[rank])


def test_rank_that_counts_as_lost_gets_an_error() -> None:
    def handlers(rank: int, port: LocalServerPort) -> list[Handler]:
        return [CollectiveLeader(2, port, limit_s=5)]

    def work(rank: int, channel: RequestChannel) -> Any:
        if rank == 1:
            channel.send(0, Message(Kind.CONTRIBUTION, 0, 1, {"value": 1}))
            return channel.wait(lambda now: False, lambda: "an answer", limit_s=5)
        return None

    results = on_every_rank(_OneSided(2), handlers, work)
    assert isinstance(results[1], PeerError)
    assert "continue without this one" in str(results[1])


class _OneSided(LocalNetwork):
    """Rank 0 considers rank 1 as lost, but messages are delivered."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.cut_off = {1: "silent for 5 s"}

    def deliver(self, box: Any, sender: int, to: int, message: Message) -> bool:
        cut_off, self.cut_off = self.cut_off, {}
        try:
            return super().deliver(box, sender, to, message)
        finally:
            self.cut_off = cut_off


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("sum", 6), (None, 6), ("mean", 1.5), ("max", 3), ("min", 0), ("avg", 1.5)],
)
def test_reductions(operation: str | None, expected: float) -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        value = torch.tensor([float(rank), 1.0])
        return collectives.reduce(value, operation)[0].item()

    assert gather_on_all(LocalNetwork(WORLD), work) == [expected] * WORLD


def test_gather_keeps_shapes_and_dtypes() -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        tensor = torch.full((rank, 2), rank, dtype=torch.int64)
        return [(t.shape, t.dtype) for t in collectives.gather(tensor)]

    expected = [((rank, 2), torch.int64) for rank in range(WORLD)]
    assert gather_on_all(LocalNetwork(WORLD), work) == [expected] * WORLD


def test_decisions_and_broadcast() -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        live = collectives
        return (
            live.decide(rank == 1, all_agree=False),
            live.decide(rank == 1, all_agree=True),
            live.decide(True, all_agree=True),
            live.broadcast(f"from {rank}", 2),
        )

    assert gather_on_all(LocalNetwork(WORLD), work) == [(True, False, True, "from 2")] * WORLD


def test_unknown_operation_is_an_error() -> None:
    def work(rank: int, collectives: LiveCollectives) -> Any:
        return collectives.reduce(torch.zeros(1), "xor")

    (error,) = gather_on_all(LocalNetwork(1), work)
    assert isinstance(error, ValueError)
    assert "xor" in str(error)


class _Recording:
    """A handler that records lost ranks."""

    def __init__(self, kinds: set[Kind]) -> None:
        self.kinds = frozenset(kinds)
        self.gone: list[int] = []

    def handle(self, received: Any, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def peer_gone(self, rank: int, now: float) -> None:
        self.gone.append(rank)


@pytest.mark.parametrize("shutting_down", [False, True])
def test_rank_that_leaves_during_the_shutdown_needs_no_successor(shutting_down: bool) -> None:
    network = LocalNetwork(3)
    port: Any = LocalServerPort(network, 0)
    watch: Any = LocalWatch(network, 0)
    watch.left = lambda: {1}
    network.cut_off[2] = "killed"
    leader, server = _Recording({Kind.CONTRIBUTION}), _Recording({Kind.PUSH})
    server_loop = ServerLoop(port, watch, [leader, server])
    if shutting_down:
        server_loop.begin_shutdown()
    server_loop.start()
    wait_until(lambda: len(leader.gone) == 2, "two ranks to be noticed as gone")
    server_loop.stop()
    assert leader.gone == [1, 2]
    assert server.gone == ([2] if shutting_down else [1, 2])
