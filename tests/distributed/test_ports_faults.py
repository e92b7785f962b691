"""Ranks that die, freeze, recover or leave, and the loss that the ports of the others report."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq

from lightning_hier.comm.agreement import gather_json
from lightning_hier.parameter_server.message import Kind, Limits, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.server_loop import ServerLoop
from lightning_hier.parameter_server.transport import Unconnected
from lightning_hier.parameter_server.watch import Watch
from tests.distributed.port_ranks import Serving, heard, open_rank, opened, poll_until_lost
from tests.ranks import rank_outcomes, run_ranks
from tests.waiting import WAIT_S, wait_until

# Long enough for ranks that share a busy core.
_QUICK = {"heartbeat_s": 0.5, "grace_s": 2.0}
_PATIENT = {"heartbeat_s": 0.1, "grace_s": WAIT_S}


def _killed_rank(tcp: bool) -> dict[str, Any]:
    ports, _ = open_rank(tcp=tcp, **_PATIENT)
    rank = dist.get_rank()
    client = ports.open_client("main")
    payload = torch.zeros(1_000_000)
    with Serving(ports) as serving:
        wait_until(lambda: client.send(1, Message(Kind.PUSH, payload=payload)), "room")
        if rank == 1:
            wait_until(lambda: len(serving.senders(Kind.PUSH)) == 3, "a push of every rank")
            os.kill(os.getpid(), signal.SIGKILL)
        sends = 0
        while 1 not in ports.watch.lost():
            client.send(1, Message(Kind.PUSH, payload=payload))
            sends += 1
            time.sleep(0.005)
            assert sends < 10_000
        assert not client.send(1, Message(Kind.PUSH))
        assert client.send(2 - rank, Message(Kind.PUSH))  # to the other surviving rank
        wait_until(lambda: any(r.sender == 2 - rank for r in serving.received), "the other's push")
        lost = ports.watch.lost()
    ports.close()
    return {"lost": lost, "sends": sends}


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_killed_rank_is_lost_and_nobody_blocks(tcp: bool) -> None:
    outcomes = rank_outcomes(_killed_rank, 3, tcp)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for survivor in (outcomes[0], outcomes[2]):
        assert survivor.error is None, survivor.traceback
        lost = survivor.result["lost"]
        # The loss is detected at once, without a wait for grace_s.
        assert lost == {1: "its process has ended: connections to it are refused"}
        # If sends waited for the dead peer, there would be a single send.
        assert survivor.result["sends"] > 10


def _frozen_rank(settings: dict[str, float], frozen_s: float) -> tuple[set[int], set[int]]:
    """Stop rank 1 for a while, and return the lost ranks, during the stop and at the end."""
    ports, _ = open_rank(**settings)
    rank = dist.get_rank()
    pids = gather_json(os.getpid(), torch.device("cpu"))
    with Serving(ports) as serving:
        client = ports.open_client("main")
        client.send(1, Message(Kind.ABSTAIN))
        if rank == 1:
            wait_until(lambda: len(serving.senders(Kind.ABSTAIN)) == 3, "a message of every rank")
        gather_json("all are connected", torch.device("cpu"))
        meanwhile: set[int] = set()
        if rank == 0:
            os.kill(pids[1], signal.SIGSTOP)
            try:
                if frozen_s:
                    time.sleep(frozen_s)
                else:
                    wait_until(lambda: 1 in ports.watch.lost(), "the loss of the frozen rank")
                meanwhile = set(ports.watch.lost())
            finally:
                os.kill(pids[1], signal.SIGCONT)
        gather_json("the frozen rank continues", torch.device("cpu"))
        if frozen_s:
            assert client.send(1, Message(Kind.PUSH))
            if rank == 1:
                wait_until(lambda: len(serving.senders(Kind.PUSH)) == 3, "a push of every rank")
            time.sleep(5 * settings["heartbeat_s"])
        gather_json("all have checked", torch.device("cpu"))
    lost = set(ports.watch.lost())
    ports.close()
    return meanwhile, lost


def test_frozen_rank_is_lost_and_does_not_take_the_others_for_lost() -> None:
    (meanwhile, at_end), (_, lost_by_frozen), _ = run_ranks(_frozen_rank, 3, _QUICK, 0.0)
    assert meanwhile == at_end == {1}
    assert lost_by_frozen == set()


def test_rank_that_recovers_within_grace_is_not_lost() -> None:
    """The rank is frozen for ten heartbeats, so that its connections time out."""
    for meanwhile, at_end in run_ranks(_frozen_rank, 3, _PATIENT, 1.0):
        assert meanwhile == at_end == set()


def test_rank_that_has_never_connected_is_lost(tmp_path: Path) -> None:
    with zmq.Context() as context:
        unconnected = Unconnected(context.socket(zmq.DEALER), f"ipc://{tmp_path}/none")
        watch = Watch(context, {3: unconnected}, **_QUICK)
        poll_until_lost(watch)
        assert watch.lost() == {3: "it could not be reached for grace_s=2 s after the start"}
        watch.close()


def test_rank_that_has_sent_bye_has_left_and_is_not_lost() -> None:
    with opened(3, **_QUICK) as [ports, leaving, dying]:
        client = leaving.open_client("main")
        with Serving(ports):
            for peer in (0, 2):
                assert client.send(peer, Message(Kind.BYE))
            wait_until(ports.watch.left, "the BYE message")
            leaving.close()
            dying.close()
            wait_until(ports.watch.lost, "the loss of the rank that has sent no BYE")
        assert list(ports.watch.lost()) == [2]
        assert ports.watch.left() == {1}


class _Slow:
    """A handler that takes longer than several heartbeats."""

    kinds = frozenset({Kind.PUSH})

    def handle(self, received: Received, now: float) -> None:
        time.sleep(0.3)

    def tick(self, now: float) -> None:
        pass

    def peer_gone(self, rank: int, now: float) -> None:
        pass


def test_bye_behind_slow_messages_is_read_before_a_rank_is_lost() -> None:
    with opened(2, heartbeat_s=0.1, grace_s=WAIT_S) as [ports, leaving]:
        client = leaving.open_client("main")
        wait_until(lambda: client.send(0, Message(Kind.ABSTAIN)), "room")
        heard(ports.server)  # so that they are connected
        for _ in range(5):
            assert client.send(0, Message(Kind.PUSH))
        assert client.send(0, Message(Kind.BYE))
        leaving.close()
        server_loop = ServerLoop(ports.server, ports.watch, [_Slow()])
        server_loop.start()
        wait_until(server_loop.gone, "the BYE message")
        server_loop.stop()
        assert ports.watch.left() == {1} and not ports.watch.lost()


def test_messages_of_a_lost_rank_are_still_read() -> None:
    with opened(2, **_QUICK) as [ports, other]:
        client = ports.open_client("main")
        client.send(1, Message(Kind.PUSH))
        received = heard(other.server)
        assert other.server.send(received.address, Message(Kind.BLOCK, payload=torch.ones(9)))
        other.close()
        with Serving(ports):
            wait_until(ports.watch.lost, "the loss")
        last = heard(client)
        assert last.message.kind == Kind.BLOCK
        assert client.receive(0.0) is None


def test_reply_to_a_rank_that_is_gone_is_not_sent() -> None:
    with opened(2, limits=Limits(queued_messages=10)) as [ports, other]:
        client = ports.open_client("main")
        client.send(1, Message(Kind.PUSH))
        received = heard(other.server)
        ports.close()
        wait_until(
            lambda: not other.server.send(received.address, Message(Kind.BLOCK)), "the refusal"
        )


def test_pause_of_the_poller_is_not_held_against_others(tmp_path: Path) -> None:
    """After a pause, peers that do not respond have the whole ``grace_s`` again."""
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    with silent, zmq.Context() as context:
        unconnected = Unconnected(context.socket(zmq.DEALER), f"ipc://{tmp_path}/silent")
        watch = Watch(context, {1: unconnected}, heartbeat_s=0.1, grace_s=2.0)
        watch.poll()
        for pause_s in (0.5, 2.5):
            time.sleep(pause_s)
            watch.poll()
        assert not watch.lost()
        poll_until_lost(watch)
        watch.close()


def test_rank_whose_process_has_ended_is_lost_also_in_a_flood_of_messages(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(tmp_path / "ended"))  # it does not listen, so connections are refused
    with zmq.Context() as context:
        unconnected = Unconnected(context.socket(zmq.DEALER), f"ipc://{tmp_path}/ended")
        watch = Watch(context, {1: unconnected}, heartbeat_s=0.02, grace_s=2 * WAIT_S)
        poll_until_lost(watch, unread=True)
        assert watch.lost() == {1: "its process has ended: connections to it are refused"}
        watch.close()
