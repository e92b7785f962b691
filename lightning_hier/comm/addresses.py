"""Addresses of ranks, inside their host and at the network interface of the job."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Request for the IPv4 address of an interface (netdevice(7)). Python has no name for it.
_SIOCGIFADDR = 0x8915
_IPV6_TABLE = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Offer:
    """The address that a rank offers to the other ranks.

    Attributes:
        host: result of :func:`host_identity` on this rank.
        address: address of its network interface for the job; None if there is a problem.
        master: address of the job's master as resolved on this rank; None if the user has named the
            interface.
        problem: why there is no address. It matters only for a job of several hosts.

    """

    host: str
    address: str | None = None
    master: str | None = None
    problem: str | None = None


def make_offer(environment: Mapping[str, str]) -> Offer:
    """The address of this rank at the interface that the user has named, or towards the master.

    Does not raise: an :class:`Offer` without an address contains the problem.

    Args:
        environment: environment variables of this process.

    """
    host = host_identity()
    try:
        named = named_interface_address(environment)
        if named is not None:
            return Offer(host, named)
        return Offer(host, *routed_address(environment["MASTER_ADDR"]))
    except KeyError:
        return Offer(host, problem="neither GLOO_SOCKET_IFNAME nor MASTER_ADDR is set")
    except OSError as error:
        return Offer(host, problem=str(error))


def job_address(rank: int, offers: Sequence[Offer]) -> str:
    """The address at which a rank serves ranks of other hosts.

    On the master's host, its name may resolve to a loopback address. Then the address is the one
    that the other hosts have resolved.

    Args:
        rank: rank that serves.
        offers: offers of all ranks.

    Raises:
        OSError: there is no address.

    """
    offer = offers[rank]
    if offer.address is None:
        raise OSError(offer.problem)
    # A loopback interface that the user has named is used as it is.
    if offer.master is None or not is_loopback(offer.address):
        return offer.address
    resolved = [
        other.master for other in offers if other.host != offer.host and other.master is not None
    ]
    # If all of them are loopback addresses, one machine only looks like several hosts.
    return next((address for address in resolved if not is_loopback(address)), offer.address)


def host_identity() -> str:
    """A text that is equal only for ranks that can share a socket in the file system.

    Such ranks have the same kernel, network, view of the file system and user. Two containers on
    one machine use TCP, and so do ranks that cannot read ``/proc``.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.stat(f"/proc/self/ns/{space}").st_ino for space in ("net", "mnt")]
    except OSError:  # unique, because TCP works in any case, and a socket file might not
        boot, spaces = secrets.token_hex(8), []
    return "/".join([boot, *map(str, spaces), str(os.getuid())])


def named_interface_address(environment: Mapping[str, str]) -> str | None:
    """Address of the interface that the user has named for gloo or NCCL; None without one.

    Raises:
        OSError: there is no such interface, or it has no address.

    """
    names = [name for _, name in socket.if_nameindex()]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = environment.get(variable, "").split(",")[0].strip()
        if not wanted or wanted.startswith("^"):  # in NCCL, this prefix excludes interfaces
            continue
        # In NCCL, "eth" is a prefix and "=eth0" is an exact name.
        prefix, exact = wanted, wanted.removeprefix("=")
        name = exact if exact in names else next((n for n in names if n.startswith(prefix)), None)
        if name is None:
            raise OSError(f"{variable}={wanted} must be one of the interfaces {', '.join(names)}")
        return interface_address(name)
    return None


def interface_address(name: str) -> str:
    """The first address of a network interface.

    Raises:
        OSError: the interface has no address.

    """
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # struct ifreq: 16 bytes of name, then family and port (4 bytes), then the address.
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    with suppress(OSError):
        for line in _IPV6_TABLE.read_text().splitlines():
            digits, _, _, scope, _, owner = line.split()
            if owner == name and scope == "00":  # global scope, not link-local
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    raise OSError(f"network interface {name} has no address")


def routed_address(host: str) -> tuple[str, str]:
    """This rank's address on the route to ``host``, and the address of ``host``.

    No packet is sent.

    Raises:
        OSError: the name is unknown or there is no route to it.

    """
    # The kernel chooses the route when a datagram socket connects. Any port will do.
    family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0]), str(target[0])


def is_loopback(address: str) -> bool:
    """Whether an address is a loopback address."""
    return address.startswith("127.") or address == "::1"


def tcp_endpoint(address: str) -> str:
    """Endpoint of ZeroMQ to bind to, on a port that the kernel chooses."""
    return f"tcp://[{address}]:*" if ":" in address else f"tcp://{address}:*"
