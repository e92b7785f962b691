"""A rank serves at the address of the user's interface, or on the route to MASTER_ADDR."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lightning_hier.comm import addresses
from lightning_hier.comm.addresses import (
    Offer,
    interface_address,
    job_address,
    make_offer,
    named_interface_address,
    tcp_endpoint,
)

_LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, None),
        ({"GLOO_SOCKET_IFNAME": _LOOPBACK}, "127.0.0.1"),
        ({"GLOO_SOCKET_IFNAME": f"{_LOOPBACK},other"}, "127.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": f"={_LOOPBACK}"}, "127.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": _LOOPBACK[:1]}, "127.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, None),
        ({"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": "none0"}, "127.0.0.1"),
    ],
)
def test_interface_that_the_user_names(environment: dict[str, str], address: str | None) -> None:
    assert named_interface_address(environment) == address


def test_error_names_a_missing_interface() -> None:
    with pytest.raises(OSError, match="GLOO_SOCKET_IFNAME=none0 must be one of the interfaces"):
        named_interface_address({"GLOO_SOCKET_IFNAME": "none0"})
    with pytest.raises(OSError, match="none0 has no address"):
        interface_address("none0")


def test_ipv6_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface has no IPv4 address. Its link-local address does not count."""
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe800000000000000000000000000001 02 40 20 80 six0\n"
        "20010db8000000000000000000000007 02 40 00 80 six0\n"
    )
    monkeypatch.setattr(addresses, "_IPV6_TABLE", table)
    assert interface_address("six0") == "2001:db8::7"
    assert tcp_endpoint("2001:db8::7") == "tcp://[2001:db8::7]:*"
    assert tcp_endpoint("10.0.0.7") == "tcp://10.0.0.7:*"


def test_offer_has_the_address_on_the_route_to_the_master() -> None:
    offer = make_offer({"MASTER_ADDR": "127.0.0.1"})
    assert (offer.address, offer.master, offer.problem) == ("127.0.0.1", "127.0.0.1", None)
    offer = make_offer({"MASTER_ADDR": "10.1.1.1", "GLOO_SOCKET_IFNAME": _LOOPBACK})
    assert (offer.address, offer.master) == ("127.0.0.1", None)


def test_offer_without_an_address_has_a_reason() -> None:
    assert make_offer({}).problem == "neither GLOO_SOCKET_IFNAME nor MASTER_ADDR is set"
    with pytest.raises(OSError, match="MASTER_ADDR is set"):
        job_address(0, [make_offer({}), Offer("b", "10.0.0.2", "10.0.0.1")])


_FAR = Offer("b", "10.0.0.2", "10.0.0.1")


@pytest.mark.parametrize(
    ("offers", "address"),
    [
        ([Offer("a", "10.0.0.1", "10.0.0.1"), _FAR], "10.0.0.1"),
        # On the master's host, its name resolves to the loopback address.
        ([Offer("a", "127.0.0.1", "127.0.1.1"), _FAR], "10.0.0.1"),
        ([Offer("a", "::1", "::1"), Offer("a", "::1", "::1"), _FAR], "10.0.0.1"),
        # One machine with two host names.
        ([Offer("a", "127.0.0.1", "127.0.0.1"), Offer("b", "127.0.0.1", "127.0.0.1")], "127.0.0.1"),
        ([Offer("a", "127.0.0.1"), _FAR], "127.0.0.1"),  # the user has named the interface
    ],
)
def test_address_of_the_job(offers: list[Offer], address: str) -> None:
    assert job_address(0, offers) == address
