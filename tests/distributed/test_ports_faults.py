"""Ranks that die, freeze, recover or leave, and the loss that the ports of the others report."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.server import Servers, WaitingRanks
from lightning_hier.parameter_server.server_loop import ServerLoop
from tests.distributed.port_ranks import Serving, heard, open_rank, opened
from tests.ranks import rank_outcomes, run_ranks
from tests.waiting import wait_until


def _killed_rank() -> dict[str, Any]:
    ports, _ = open_rank(tcp=True)
    rank = dist.get_rank()
    client = ports.clients["main"]
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


def test_killed_rank_is_lost_and_nobody_blocks() -> None:
    outcomes = rank_outcomes(_killed_rank, 3)
    assert outcomes[1].exit_code == -signal.SIGKILL
    for survivor in (outcomes[0], outcomes[2]):
        assert survivor.error is None, survivor.traceback
        lost = survivor.result["lost"]
        assert lost.startswith("rank 1 is lost: its process has ended")
        # If sends waited for the dead peer, there would be a single send.
        assert survivor.result["sends"] > 10


_SILENT_S = 2.0


def _frozen_rank() -> str:
    """Stop rank 1 for longer than its host may be silent. Return the error of the watch."""
    ports, _ = open_rank(tcp=True, silent_limit_s=_SILENT_S)
    rank = dist.get_rank()
    pids = gather_json(os.getpid(), torch.device("cpu"))
    with Serving(ports) as serving:
        client = ports.clients["main"]
        if rank == 0:
            os.kill(pids[1], signal.SIGSTOP)
            try:
                client.send(1, Message(Kind.PUSH, payload=torch.zeros(3_000_000)))
                time.sleep(2 * _SILENT_S)
            finally:
                os.kill(pids[1], signal.SIGCONT)
        else:
            assert client.send(1, Message(Kind.PUSH))
        if rank == 1:
            wait_until(lambda: len(serving.senders(Kind.PUSH)) == 3, "a push of every rank")
        gather_json("all have checked", torch.device("cpu"))
    ports.close()
    return serving.lost


def test_rank_that_is_stopped_is_not_lost() -> None:
    """The kernel of its host answers for it, and keeps its connections."""
    assert run_ranks(_frozen_rank, 3) == [""] * 3


@pytest.mark.parametrize("error", [PeerError("rank 5 is lost"), ValueError("own mistake")])
def test_failure_of_a_rank_is_reported_to_the_others(error: Exception) -> None:
    """The report is sent before the ports close. The first failure is the cause of the others."""
    with opened(3) as all_ports:
        loops = [ServerLoop(ports) for ports in all_ports]
        for loop, ports in zip(loops, all_ports, strict=True):
            loop.servers = Servers({}, ports.server, WaitingRanks())
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
    with opened(2) as [ports, other]:
        client = ports.clients["main"]
        client.send(1, Message(Kind.PUSH))
        received = heard(other.server)
        ports.close()
        wait_until(
            lambda: not other.server.send(received.address, Message(Kind.BLOCK)), "the refusal"
        )
