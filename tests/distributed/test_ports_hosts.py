"""Ports between emulated hosts: TCP with CURVE over links that are cut for a while."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.hosts import hosts
from lightning_hier.comm.agreement import gather_json
from lightning_hier.parameter_server.message import Kind, Message
from tests.distributed.port_ranks import Serving, open_rank
from tests.namespaces import run_on_hosts
from tests.waiting import WAIT_S, leave_mark, wait_for_marks, wait_until

_LINK = "eth0"
_CPU = torch.device("cpu")


def _run(folder: Path) -> str | None:
    """Cut the given interface for a while, and for longer. Return the address of this rank."""
    assert os.environ["GLOO_SOCKET_IFNAME"] == _LINK
    dist.init_process_group("gloo")
    address = _cut_within_the_limit()
    _cut_beyond_the_limit(folder)
    return address


@pytest.mark.needs_netns
def test_ports_between_hosts(tmp_path: Path) -> None:
    """Two hosts of two ranks, which check the messages and the effects of cuts themselves."""
    with hosts(2) as emulated:
        for rank, address in enumerate(run_on_hosts(emulated, 2, _run, tmp_path)):
            assert str(address).startswith(f"tcp://{emulated[rank // 2].address}:")


def _far() -> tuple[int, int]:
    return (2, 3) if dist.get_rank() < 2 else (0, 1)


def _cut_within_the_limit() -> str | None:
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
    return ports._register.own.tcp


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
