"""A cluster: hosts, links and processors, as described by a user or measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lightning_hier.algorithms.arguments import (
    check_keys,
    check_not_negative,
    check_positive,
    check_whole,
)

# To be increased when the meaning of a field changes, so that older files are refused.
_FORMAT = 1


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


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The file that ``measure`` writes and ``plan`` reads. None means not measured.

    Attributes:
        hosts: number of hosts.
        devices: ranks of one host.
        within: link between two ranks of one host.
        between: link between two hosts.
        processor: processor of one host.
        notes: texts by name: versions, backend, date.

    """

    hosts: int
    devices: int
    within: Link | None = None
    between: Link | None = None
    processor: Processor | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)

    def to_json(self) -> str:
        """Return the measurement as JSON text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read the text of :meth:`to_json`.

        Raises:
            ValueError: the text is not a measurement, or has another format.

        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"a measurement must be JSON: {error}") from error
        known = {"format", *(entry.name for entry in fields(cls))}
        values = dict(check_keys("a measurement", values, {"format", "hosts", "devices"}, known))
        if (version := values.pop("format")) != _FORMAT:
            raise ValueError(
                f"the format of a measurement must be {_FORMAT}, got {version}: measure again"
            )
        parts: dict[str, Callable[..., Any]] = {
            "within": Link,
            "between": Link,
            "processor": Processor,
        }
        for name in parts.keys() & values.keys():
            if values[name] is not None:
                try:
                    values[name] = parts[name](**values[name])
                except (TypeError, ValueError) as error:
                    raise ValueError(f"{name!r} of a measurement: {error}") from error
        return cls(**values)
