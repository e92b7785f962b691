"""Ports between emulated hosts: TCP with CURVE over links that are cut for a while."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq

from benchmarks.hosts import hosts
from lightning_hier.comm.agreement import gather_json
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import Ports
from tests.distributed.port_ranks import Serving, open_rank
from tests.namespaces import run_on_hosts
from tests.waiting import WAIT_S, leave_mark, wait_for_marks, wait_until

_LINK = "eth0"
_CPU = torch.device("cpu")


def _run(folder: Path) -> dict[str, Any]:
    """Exchange messages with all ranks over the given interface, with short and long cuts."""
    assert os.environ["GLOO_SOCKET_IFNAME"] == _LINK
    dist.init_process_group("gloo")
    report = _exchange_with_all()
    _cut_within_the_limit()
    _cut_beyond_the_limit(folder)
    return report


@pytest.mark.needs_netns
def test_ports_between_hosts(tmp_path: Path) -> None:
    """Two hosts of two ranks, which check the messages and the effects of cuts themselves."""
    with hosts(2) as emulated:
        for rank, report in enumerate(run_on_hosts(emulated, 2, _run, tmp_path)):
            assert report["served_at"] == emulated[rank // 2].address
            for peer, transport in enumerate(report["transports"]):
                near = "ipc" if peer // 2 == rank // 2 else "tcp"
                assert transport == ("inproc" if peer == rank else near)


def _exchange_with_all() -> dict[str, Any]:
    """Address of this rank's server, and transport of its connection to each rank."""
    ports, _ = open_rank()
    rank = dist.get_rank()
    client = ports.clients["main"]
    with Serving(ports) as serving:
        for peer in range(4):
            assert client.send(peer, Message(Kind.PUSH, payload=torch.full((100_000,), rank)))
        wait_until(lambda: len(serving.received) == 4, "a push of every rank")
        for received in serving.received:
            assert received.message.payload[-1] == received.sender
        assert serving.senders(Kind.PUSH) == {0, 1, 2, 3}
        assert not ports.refusals()
        served_at = _only_at_the_job_s_address(ports)
        gather_json("all have checked", _CPU)
    assert not serving.lost
    endpoints = [client._sockets[peer].get_string(zmq.LAST_ENDPOINT) for peer in range(4)]
    ports.close()
    return {"served_at": served_at, "transports": [text.partition(":")[0] for text in endpoints]}


def _far() -> tuple[int, int]:
    return (2, 3) if dist.get_rank() < 2 else (0, 1)


def _only_at_the_job_s_address(ports: Ports) -> str:
    endpoint = ports._register.own.tcp
    assert endpoint is not None
    address, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    socket.create_connection((address, int(port)), timeout=WAIT_S).close()
    try:
        socket.create_connection(("127.0.0.1", int(port)), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return address
    raise AssertionError("the server can be reached at the loopback")


def _cut_within_the_limit() -> None:
    ports, _ = open_rank(silent_limit_s=WAIT_S)
    client = ports.clients["main"]
    with Serving(ports) as serving:
        client.send(_far()[0], Message(Kind.ABSTAIN))
        gather_json("all are connected", _CPU)
        if dist.get_rank() == 2:
            _link("down")
        time.sleep(1.0)
        for peer in _far():
            assert client.send(peer, Message(Kind.PUSH, payload=torch.zeros(100_000)))
        if dist.get_rank() == 2:
            _link("up")
        wait_until(lambda: serving.senders(Kind.PUSH) == set(_far()), "the messages during the cut")
        gather_json("all have received", _CPU)
    assert not serving.lost
    ports.close()


def _cut_beyond_the_limit(folder: Path) -> None:
    ports, _ = open_rank(silent_limit_s=3.0)
    rank = dist.get_rank()
    near = rank ^ 1
    client = ports.clients["main"]
    with Serving(ports) as serving:
        # The hosts share a file system, which the cut does not affect.
        leave_mark(folder, f"there{rank}")
        wait_for_marks(folder, *(f"there{each}" for each in range(4)))
        if rank == 2:
            _link("down")
        wait_until(lambda: serving.lost, "the loss of the other host")
        assert client.send(near, Message(Kind.PUSH))
        wait_until(lambda: serving.senders(Kind.PUSH) == {near}, "a push of this host's rank")
        leave_mark(folder, f"noticed{rank}")
        if rank == 2:
            wait_for_marks(folder, *(f"noticed{each}" for each in range(4)))
            _link("up")
        gather_json("the cut is over", _CPU)
        assert any(f"rank {rank} is lost" in serving.lost for rank in _far())
    ports.close()


def _link(state: str) -> None:
    subprocess.run(["ip", "link", "set", _LINK, state], check=True)
