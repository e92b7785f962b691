"""Ports of parameter servers: messages between ranks, byte counts, open files and closing."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq

from lightning_hier.comm.agreement import gather_json
from lightning_hier.parameter_server.authentication import Contact
from lightning_hier.parameter_server.message import Kind, Message, encode
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.transport import Transport
from tests.distributed.port_ranks import Serving, heard, open_rank, opened
from tests.ranks import run_ranks
from tests.waiting import WAIT_S

_LARGE = 1_000_000  # elements of float32


def _everyone_to_everyone() -> dict[str, float]:
    ports, traffic = open_rank(tcp=True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    client = ports.clients["main"]

    def echo(received: Received) -> None:
        message = received.message
        assert message.facts == {"from": received.sender}
        assert message.payload[-1] == received.sender
        ports.server.send(
            received.address,
            Message(Kind.BLOCK, message.block, message.timestamp + 1, payload=message.payload * 2),
        )

    with Serving(ports, echo):
        for peer in range(world_size):
            payload = torch.full((_LARGE,), float(rank))
            assert client.send(peer, Message(Kind.PUSH, peer, 41, {"from": rank}, payload))
        answers = [client.receive(WAIT_S) for _ in range(world_size)]
        senders = sorted(answer.sender for answer in answers if answer is not None)
        assert senders == list(range(world_size))
        for answer in answers:
            assert answer is not None
            assert answer.message.kind == Kind.BLOCK
            assert (answer.message.block, answer.message.timestamp) == (answer.sender, 42)
            assert torch.equal(answer.message.payload, torch.full((_LARGE,), 2.0 * rank))
        gather_json("all have been served", torch.device("cpu"))
    assert not ports.refusals()
    ports.close()
    return {name: value for name, value in traffic.metrics().items() if value}


def test_everyone_to_everyone() -> None:
    """The counts contain the messages to other ranks, and not that to the rank itself."""
    payload = torch.zeros(_LARGE)
    push = encode(Message(Kind.PUSH, 0, 41, {"from": 0}, payload))[0]
    block = encode(Message(Kind.BLOCK, 0, 42, {}, payload))[0]
    for counts in run_ranks(_everyone_to_everyone, 3):
        assert counts["hier/across/push/payload_bytes"] == 2 * (4 * _LARGE + len(push))
        assert counts["hier/across/block/payload_bytes"] == 2 * (4 * _LARGE + len(block))
        assert counts["hier/across/push/calls"] == counts["hier/across/block/calls"] == 2


def test_ranks_of_one_host_connect_over_ipc_and_those_of_two_over_tcp() -> None:
    with opened(4, tcp=True, ranks_per_host=2) as of_ranks:
        for rank, ports in enumerate(of_ranks):
            client = ports.clients["main"]
            for peer in range(4):
                assert client.send(peer, Message(Kind.PUSH, timestamp=rank))
        for rank, ports in enumerate(of_ranks):
            messages = [ports.server.receive(WAIT_S) for _ in range(4)]
            assert sorted(r.message.timestamp for r in messages if r is not None) == [0, 1, 2, 3]
            sockets = ports.clients["main"]._sockets.values()
            transports = [_transport(client_socket) for client_socket in sockets]
            near = rank ^ 1
            expected = ["inproc" if p == rank else "ipc" if p == near else "tcp" for p in range(4)]
            assert transports == expected
            assert not ports.refusals()


def _transport(client_socket: zmq.Socket) -> str:
    return client_socket.get_string(zmq.LAST_ENDPOINT).partition(":")[0]


def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    """Ports close with messages in every queue, after a limited wait for ZeroMQ."""
    with opened(3) as [ports, *_]:
        client = ports.clients["main"]
        for peer in range(3):
            for _ in range(20):
                client.send(peer, Message(Kind.PUSH, payload=torch.zeros(_LARGE)))
        begun = time.monotonic()
        ports.close()
        ports.close()
        assert time.monotonic() - begun < WAIT_S
        assert ports._transport.context.closed


def test_sockets_have_no_name_once_the_ports_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a temporary folder whose path is too long for the address of a socket."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    modes: list[int] = []
    bind = Transport.bind

    def bind_and_record(transport: Transport, *arguments: Any) -> Contact:
        contact = bind(transport, *arguments)
        folder = Path(str(contact.ipc).removeprefix("ipc://")).parent
        modes.append(folder.stat().st_mode & 0o777)
        return contact

    monkeypatch.setattr(Transport, "bind", bind_and_record)
    with opened(2) as [ports, other]:
        assert not list(deep.iterdir())
        ports.clients["main"].send(1, Message(Kind.PUSH))
        heard(other.server)
    assert modes == [0o700, 0o700]


def test_socket_that_cannot_be_opened_is_an_error_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = Transport.bind
    monkeypatch.setattr(
        Transport, "bind", lambda *arguments: replace(bind(*arguments), ipc="ipc:///none/of")
    )
    with pytest.raises(RuntimeError, match="rank 0: no connection with rank 1; rank 1: "):
        with opened(2):
            pass


def _cannot_bind() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "none0"
    open_rank(tcp=True)


def test_rank_that_cannot_be_reached_is_an_error_on_all() -> None:
    for error in run_ranks(_cannot_bind, 3, expect_failure=True):
        assert "rank 1: GLOO_SOCKET_IFNAME=none0 must be one of the interfaces" in error
