"""Ranks that die, freeze, recover or leave, and the loss that the ports of the others report."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Limits, Message
from lightning_hier.parameter_server.server_loop import ServerLoop
from lightning_hier.parameter_server.transport import Unconnected
from lightning_hier.parameter_server.watch import Watch
from tests.distributed.port_ranks import Serving, heard, open_rank, opened, poll_until_lost
from tests.ranks import rank_outcomes, run_ranks
from tests.waiting import WAIT_S, wait_until

# Long enough for ranks that share a busy core.
_QUICK = {"heartbeat_s": 0.1, "silent_limit_s": 2.0}
_PATIENT = {"heartbeat_s": 0.1, "silent_limit_s": WAIT_S}


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
        while not serving.lost:
            client.send(1, Message(Kind.PUSH, payload=payload))
            sends += 1
            time.sleep(0.005)
            assert sends < 10_000
        assert client.send(2 - rank, Message(Kind.PUSH))  # to the other surviving rank
        wait_until(lambda: any(r.sender == 2 - rank for r in serving.received), "the other's push")
        lost = serving.lost
    ports.close()
    return {"lost": lost, "sends": sends}


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_killed_rank_is_lost_and_nobody_blocks(tcp: bool) -> None:
    outcomes = rank_outcomes(_killed_rank, 3, tcp)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for survivor in (outcomes[0], outcomes[2]):
        assert survivor.error is None, survivor.traceback
        lost = survivor.result["lost"]
        # The loss is detected at once, without a wait for the silent host.
        host = "host 127.0.0.1" if tcp else "this host"
        assert lost.startswith(f"rank 1 is lost: its process has ended, {host} refuses connections")
        # If sends waited for the dead peer, there would be a single send.
        assert survivor.result["sends"] > 10


def _frozen_rank() -> str:
    """Stop rank 1 for longer than its host may be silent. Return the error of the watch."""
    ports, _ = open_rank(**_QUICK)
    rank = dist.get_rank()
    pids = gather_json(os.getpid(), torch.device("cpu"))
    with Serving(ports) as serving:
        client = ports.open_client("main")
        client.send(1, Message(Kind.ABSTAIN))
        if rank == 1:
            wait_until(lambda: len(serving.senders(Kind.ABSTAIN)) == 3, "a message of every rank")
        gather_json("all are connected", torch.device("cpu"))
        if rank == 0:
            os.kill(pids[1], signal.SIGSTOP)
            try:
                broken = ports.watch._peers[1]
                wait_until(lambda: broken.broken_s > 3.0, "the end of the limit")
            finally:
                os.kill(pids[1], signal.SIGCONT)
        gather_json("the frozen rank continues", torch.device("cpu"))
        assert client.send(1, Message(Kind.PUSH))
        if rank == 1:
            wait_until(lambda: len(serving.senders(Kind.PUSH)) == 3, "a push of every rank")
        time.sleep(5 * _QUICK["heartbeat_s"])
        gather_json("all have checked", torch.device("cpu"))
    ports.close()
    return serving.lost


def test_rank_that_is_stopped_is_not_lost() -> None:
    """Its connections time out, but its host still accepts new ones."""
    assert run_ranks(_frozen_rank, 3) == [""] * 3


def test_rank_that_has_never_connected_is_lost(tmp_path: Path) -> None:
    with zmq.Context() as context:
        unconnected = Unconnected(context.socket(zmq.DEALER), f"ipc://{tmp_path}/none")
        watch = Watch(context, {3: unconnected}, **_QUICK)
        assert "rank 3 is lost: this host has not answered for 2 s" in poll_until_lost(watch)
        watch.close()


@pytest.mark.parametrize("error", [PeerError("rank 5 is lost"), ValueError("own mistake")])
def test_failure_of_a_rank_is_reported_to_the_others(error: Exception) -> None:
    """The report is sent before the ports close. The first failure is the cause of the others."""
    with opened(3, **_PATIENT) as all_ports:
        loops = [ServerLoop(ports.server, ports.watch, ports.alarm, []) for ports in all_ports]
        for loop in loops:
            loop.start()
        loops[2].fail(error)
        loops[2].stop()
        all_ports[2].close()
        for loop in loops[:2]:
            wait_until(partial(getattr, loop, "failure"), "the report")
            loop.fail(RuntimeError("a later one"))
            loop.stop()
        named = "rank 5 is lost" if isinstance(error, PeerError) else "rank 2 has ended with Value"
        for loop in loops[:2]:
            with pytest.raises(PeerError, match=named):
                loop.check()


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
    """After a pause, peers that do not respond have the whole limit again."""
    with zmq.Context() as context:
        unconnected = Unconnected(context.socket(zmq.DEALER), f"ipc://{tmp_path}/none")
        watch = Watch(context, {1: unconnected}, heartbeat_s=0.1, silent_limit_s=2.0)
        watch.poll()
        for pause_s in (0.5, 2.5):
            time.sleep(pause_s)
            watch.poll()
        poll_until_lost(watch)
        watch.close()
