"""Connections that are refused: unknown keys, impostors, missing tokens, and noise."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest import mock

import pytest
import zmq

from lightning_hier.parameter_server.authentication import (
    Contact,
    Credentials,
    Refused,
    Register,
    routing_id,
)
from lightning_hier.parameter_server.message import Kind, Message, encode
from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.transport import Transport
from tests.distributed.port_ranks import Serving, counted, opened
from tests.waiting import WAIT_S, wait_until

_PUSH = [encode(Message(Kind.PUSH))[0], b""]


@contextmanager
def _named(tcp: bool = False) -> Iterator[list[Ports]]:
    """Two ranks whose sockets keep their names, by which only the same user could connect."""
    with ExitStack() as stack:
        with mock.patch.object(Transport, "remove_name"):
            all_ports = stack.enter_context(opened(2, tcp=tcp))
        yield all_ports


@contextmanager
def _stranger(
    endpoint: str | None, name: bytes, keys: Credentials | None = None, server_key: str = ""
) -> Iterator[zmq.Socket]:
    """A socket that does not belong to the job, in its own context."""
    assert endpoint is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.routing_id = name
        if keys is not None:
            dealer.curve_serverkey = server_key.encode()
            dealer.curve_publickey = keys.public_key.encode()
            dealer.curve_secretkey = keys.secret_key.encode()
        dealer.connect(endpoint)
        yield dealer


def _still_serves(ports: Ports, serving: Serving) -> None:
    """Check that a message of a rank arrives, and that no other has arrived."""
    assert ports.clients["main"].send(0, Message(Kind.ARRIVE))
    wait_until(lambda: serving.received, "an honest message")
    assert [r.message.kind for r in serving.received] == [Kind.ARRIVE]


@pytest.mark.parametrize("reason", ["unknown_key", "impostor", "handshake"])
def test_strangers_are_refused_between_hosts(reason: str) -> None:
    """A key that is no rank's, one rank's key with another's name, and no encryption."""
    with opened(3, tcp=True) as [ports, other, third], Serving(ports) as serving:
        own = ports._register.own
        keys = {"unknown_key": Credentials.make(), "impostor": third._transport.credentials}
        name = routing_id(other._register.own, "false")
        with _stranger(own.tcp, name, keys.get(reason), own.public_key) as dealer:
            dealer.send_multipart(_PUSH)
            counted(ports, reason)
        _still_serves(other, serving)
        assert ports.refusals().keys() == {reason}


def test_no_token_is_refused_inside_a_host() -> None:
    """:func:`test_sender_of_a_routing_id` tests all names that are refused."""
    name = b"0123456789abcdef0123456789abcdef/1/main"
    with _named() as [ports, other], Serving(ports) as serving:
        with _stranger(ports._register.own.ipc, name) as dealer:
            dealer.send_multipart(_PUSH)
            counted(ports, "stranger")
        _still_serves(other, serving)
        assert ports.refusals() == {"stranger": 1}


def test_server_with_another_key_receives_nothing() -> None:
    """A process that takes over the address of a server cannot read messages to it."""
    with opened(2, tcp=True) as [ports, other], zmq.Context() as context:
        endpoint = other._register.own.tcp
        assert endpoint is not None
        other.close()
        false, keys = context.socket(zmq.ROUTER), Credentials.make()
        false.linger = 0
        false.curve_publickey = keys.public_key.encode()
        false.curve_secretkey = keys.secret_key.encode()
        false.curve_server = True
        false.bind(endpoint)
        ports.clients["main"].send(1, Message(Kind.PUSH))
        assert not false.poll(500)
        false.close()


_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16 + 1 + 31)
_NOISE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff" * 5000,
    bytes(5000),
    random.Random(0).randbytes(3000),
    _GREETING,
    _GREETING + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x02" + b"\xff" * 9,
    _GREETING[:20],
    b"\x01\x00\x05hello",
    b"",
]


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_noise_on_a_bare_socket_changes_nothing(tcp: bool) -> None:
    with _named(tcp) as [ports, other], Serving(ports) as serving:
        for noise in _NOISE:
            with _bare_socket(ports) as bare, suppress(OSError):
                bare.sendall(noise)
                bare.shutdown(socket.SHUT_WR)
                bare.settimeout(WAIT_S)
                while bare.recv(4096):
                    pass
        _still_serves(other, serving)
        wait_until(ports.refusals, "a refusal to be counted")
        assert ports.refusals().keys() <= {"handshake", "stranger"}


@contextmanager
def _bare_socket(ports: Ports) -> Iterator[socket.socket]:
    own = ports._register.own
    if own.tcp is not None:
        address, port = own.tcp.removeprefix("tcp://").rsplit(":", 1)
        with socket.create_connection((address, int(port))) as bare:
            yield bare
    elif own.ipc is not None:
        with socket.socket(socket.AF_UNIX) as bare:
            bare.connect(own.ipc.removeprefix("ipc://"))
            yield bare


def test_port_is_bound_to_one_address_only() -> None:
    with opened(2, tcp=True) as [ports, _]:
        endpoint = ports._register.own.tcp
        assert endpoint is not None and endpoint.startswith("tcp://127.0.0.1:")
        port = int(endpoint.rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_nothing_is_bound_to_the_network_where_all_ranks_share_a_host() -> None:
    with opened(2) as [ports, _]:
        assert ports._register.own.tcp is None
        assert str(ports._register.own.ipc).startswith("ipc://")


_TOKEN = "0" * 32
_REGISTER = Register(0, [Contact(rank, "ab"[rank // 2], _TOKEN, f"k{rank}") for rank in range(4)])


@pytest.mark.parametrize(
    ("address", "key", "outcome"),
    [
        (f"{_TOKEN}/1/main", None, 1),
        (f"{_TOKEN}/2/main", "k2", 2),
        (f"{_TOKEN}/2/main", None, "impostor"),  # a rank of the other host without its key
        (f"{_TOKEN}/1/main", "k2", "impostor"),
        (f"{_TOKEN}/4/main", None, "stranger"),
        (f"{_TOKEN}/-1/main", None, "stranger"),
        (f"{_TOKEN}/\u00b2/main", None, "stranger"),  # a digit, but no number
        (f"{_TOKEN[1:]}/1/main", None, "stranger"),
        ("1/main", None, "stranger"),
        ("", None, "stranger"),
    ],
)
def test_sender_of_a_routing_id(address: str, key: str | None, outcome: int | str) -> None:
    name = address.encode("latin-1")
    if isinstance(outcome, int):
        assert _REGISTER.sender(name, key) == outcome
    else:
        with pytest.raises(Refused) as refused:
            _REGISTER.sender(name, key)
        assert refused.value.reason == outcome


def test_repr_does_not_contain_the_secret_key() -> None:
    keys = Credentials.make()
    assert keys.secret_key not in repr(keys)
