"""Hosts, what joins them, and what their processors can do beside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_hier.algorithms.arguments import (
    check_not_negative,
    check_positive,
    check_whole,
)


@dataclass(frozen=True, kw_only=True)
class Link:
    """What carries messages: seconds = latency + bytes / bandwidth.

    It carries as much in each direction at a time.

    Attributes:
        latency_s: from the call of one rank until an empty message is with the other: half of
            what there and back take.
        bytes_per_second: payload of one direction, as a transfer of many megabytes finds it.

    Raises:
        ValueError: a value outside its range.

    """

    latency_s: float = 0.0
    bytes_per_second: float

    def __post_init__(self) -> None:
        """Check the values."""
        check_not_negative("latency_s", self.latency_s)
        check_positive("bytes_per_second", self.bytes_per_second)

    def seconds(self, nbytes: float, *, messages: float = 1.0) -> float:
        """How long so many bytes take, in messages of which each waits for the one before it."""
        return messages * self.latency_s + nbytes / self.bytes_per_second


@dataclass(frozen=True, kw_only=True)
class Processor:
    """What a host can do with bytes that are in its memory, or on their way through a socket.

    Attributes:
        cores: that the ranks of one host share; None: as many as they want. A rank whose model
            lies on a GPU moves it with that, and wants no core.
        copy_bytes_per_second: bytes of a large tensor that a rank copies to another place in the
            memory where models lie, while all ranks of the host do so, each on a core of its own.
        socket_bytes_per_second: bytes that one core sends or receives, in a transport that goes
            through the kernel (gloo, TCP); None where it does not (NCCL over NVLink or RDMA).

    Raises:
        ValueError: a value outside its range.

    """

    cores: int | None = None
    copy_bytes_per_second: float = 7e9
    socket_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.cores is not None:
            check_whole("cores", self.cores)
        check_positive("copy_bytes_per_second", self.copy_bytes_per_second)
        if self.socket_bytes_per_second is not None:
            check_positive("socket_bytes_per_second", self.socket_bytes_per_second)

    def seconds(self, *, copied: float, through_sockets: float, ranks: int) -> float:
        """How long the ranks of a host are busy with bytes, the work divided among its cores.

        Args:
            copied: bytes, over all ranks; a pass that reads and computes more than a copy does
                counts for as many copies as it takes as long as.
            through_sockets: bytes sent plus bytes received, over all ranks.
            ranks: that work at the same time.

        """
        working = ranks if self.cores is None else min(ranks, self.cores)
        socket = self.socket_bytes_per_second
        sent = 0.0 if socket is None else through_sockets / socket
        return (copied / self.copy_bytes_per_second + sent) / working


@dataclass(frozen=True, kw_only=True)
class Network:
    """Equal hosts: a link to each, which its ranks share, and a faster one between these.

    Attributes:
        hosts: number of them.
        devices: ranks of each.
        within: between two ranks of a host.
        between: between two hosts. A host has one card: what all its ranks send at a time goes
            through it.
        processor: of a host.

    Raises:
        ValueError: a value outside its range.

    """

    hosts: int
    devices: int
    within: Link
    between: Link
    processor: Processor = field(default_factory=Processor)

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.devices
