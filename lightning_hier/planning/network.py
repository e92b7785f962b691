"""A cluster: hosts, links and processors, as described by a user."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_hier.algorithms.arguments import (
    check_not_negative,
    check_positive,
    check_whole,
)


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link on which a message takes ``latency_s + bytes / bytes_per_second``.

    Attributes:
        bytes_per_second: payload bandwidth in one direction.
        latency_s: one-way time of an empty message.

    """

    bytes_per_second: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        check_positive("bytes_per_second", self.bytes_per_second)
        check_not_negative("latency_s", self.latency_s)


@dataclass(frozen=True, kw_only=True)
class Processor:
    """Rates at which a host moves bytes through its memory and its sockets.

    Attributes:
        cores: cores that the ranks of a host share. None: one for each rank, as with GPUs.
        copy_bytes_per_second: rate at which a rank copies a large tensor on the model's device
            while all ranks of the host copy.
        socket_bytes_per_second: rate at which one core sends or receives through the kernel.
            None: no limit, as with NCCL.

    """

    cores: int | None = None
    # Of a CPU, which has 5 to 10 GB/s. A GPU has hundreds (docs/planning.md).
    copy_bytes_per_second: float = 7e9
    socket_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        check_positive("copy_bytes_per_second", self.copy_bytes_per_second)
        if self.cores is not None:
            check_whole("cores", self.cores)
        if self.socket_bytes_per_second is not None:
            check_positive("socket_bytes_per_second", self.socket_bytes_per_second)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Identical hosts with one NIC each.

    Attributes:
        hosts: number of hosts.
        devices: ranks of one host.
        within: link between two ranks of one host.
        between: link between two hosts; all ranks of a host share it.
        processor: processor of each host.

    """

    hosts: int
    devices: int
    within: Link
    between: Link
    processor: Processor = field(default_factory=Processor)

    def __post_init__(self) -> None:
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.hosts * self.devices
