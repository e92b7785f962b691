"""Settings of a launch of the ranks: systems, work, network and numbers of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.performance.systems import System
from benchmarks.performance.work import Work


@dataclass(frozen=True, kw_only=True)
class Network:
    """Hosts and the links between them.

    Attributes:
        hosts: number of hosts.
        ranks_per_host: number of ranks on each host.
        rate: rate of every link in each direction, in the notation of ``tc``. None for no limit.
        loopback: whether all ranks communicate over the loopback, without emulated hosts.

    """

    hosts: int
    ranks_per_host: int
    rate: str | None
    loopback: bool = False

    @classmethod
    def read(cls, layout: str, rate: str, *, loopback: bool = False) -> Network:
        """Parse a layout and a rate.

        Args:
            layout: such as ``"2x3"`` for 2 hosts of 3 ranks each.
            rate: such as ``"1gbit"``, or ``"none"`` for no limit.
            loopback: whether all ranks communicate over the loopback, where the rate is ignored.

        Raises:
            ValueError: the layout is invalid.

        """
        try:
            hosts, ranks = (int(part) for part in layout.split("x"))
        except ValueError:
            raise ValueError(f"a layout is HOSTSxRANKS such as 2x2, got {layout!r}") from None
        if min(hosts, ranks) < 1 or hosts * ranks < 2:
            raise ValueError(f"a layout has at least 2 ranks, got {layout!r}")
        shaped = None if loopback or rate == "none" else rate
        return cls(hosts=hosts, ranks_per_host=ranks, rate=shaped, loopback=loopback)

    @property
    def ranks(self) -> int:
        """Number of ranks on all hosts."""
        return self.hosts * self.ranks_per_host

    def __str__(self) -> str:
        """Return the name of the network in tables and keys."""
        links = "loopback" if self.loopback else self.rate or "unshaped"
        return f"{self.hosts} x {self.ranks_per_host}, {links}"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Numbers of steps.

    Attributes:
        control: steps without communication, before the system's steps and again after them.
        warm_up: steps of the system before the window.
        window: steps that are measured, whole blocks.

    """

    control: int = 0
    warm_up: int = 0
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One launch of the ranks.

    Attributes:
        work: computation of each rank.
        network: hosts and links.
        goodput_bytes: bytes that are sent over a plain socket to measure the link.
        folder: folder into which every rank writes its result.
        systems: names of the systems, which are measured one after the other.
        blocks: number of measured blocks, for systems with blocks.
        steps: numbers of steps, unless the module of the ranks computes them.

    """

    work: Work
    network: Network
    goodput_bytes: int
    folder: str
    systems: Sequence[str] = ()
    blocks: int = 0
    steps: Steps = field(default_factory=Steps)

    def encoded(self) -> str:
        """Encode the job as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Job:
        """Decode the result of :meth:`encoded`."""
        values = json.loads(text)
        return cls(
            **{
                **values,
                "work": Work(**values["work"]),
                "network": Network(**values["network"]),
                "steps": Steps(**values["steps"]),
            }
        )


_UNITS = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}


def bits_per_second(rate: str | None) -> float:
    """Convert a rate in the notation of ``tc``. The result for None is infinite.

    Raises:
        ValueError: the unit is not kbit, mbit or gbit.

    """
    if rate is None:
        return float("inf")
    for unit, factor in _UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise ValueError(f"a rate ends in kbit, mbit or gbit, got {rate!r}")


def steps_for(system: System, work: Work, network: Network, *, blocks: int) -> Steps:
    """Return numbers of steps that give stable figures in bounded time.

    A system with blocks is measured over whole blocks, after its first synchronisation. A step that
    sends whole gradients takes up to 1.5 times the wire time of a model, so a few are enough.
    """
    control = 10
    if system.block > 1:
        return Steps(control=control, warm_up=system.block, window=blocks * system.block)
    if system.family == "limit" or not system.dense:
        return Steps(control=control, warm_up=6, window=20)
    slow_s = 1.5 * work.model_bytes * 8 / bits_per_second(network.rate)
    return Steps(control=control, warm_up=2, window=3 if slow_s > 4.0 else 10)


def goodput_bytes(network: Network) -> int:
    """Return the number of bytes that a rate-limited link carries in half a second."""
    rate = bits_per_second(network.rate)
    return 1 << 28 if rate == float("inf") else round(rate / 8 / 2)


def key_of(network: Network, work: Mapping[str, Any] | Work) -> str:
    """Return the key under which the results of a network and a work are stored."""
    kind = work.kind if isinstance(work, Work) else work["kind"]
    return f"{network}, {kind}"
