"""What the ranks of one run are told, and how long it takes: by the rate of the links."""

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
        hosts: how many.
        ranks_per_host: likewise.
        rate: of every link in each direction, as ``tc`` reads it; None as fast as they are.
        loopback: whether the hosts are so in name only.

    """

    hosts: int
    ranks_per_host: int
    rate: str | None
    loopback: bool = False

    @classmethod
    def read(cls, layout: str, rate: str, *, loopback: bool = False) -> Network:
        """``"2x2"`` are 2 hosts of 2 ranks each; the rate ``"none"`` leaves the links alone.

        Raises:
            ValueError: a layout that can't be read.

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
        """Of all hosts."""
        return self.hosts * self.ranks_per_host

    def __str__(self) -> str:
        """As in tables."""
        links = "loopback" if self.loopback else self.rate or "unshaped"
        return f"{self.hosts} x {self.ranks_per_host}, {links}"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How many steps are taken.

    Attributes:
        control: without communication, before and after those of the system.
        warm_up: of the system, before the window.
        window: those that are measured: whole blocks.

    """

    control: int = 0
    warm_up: int = 0
    window: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One start of the ranks.

    Attributes:
        work: computation of a step.
        network: hosts and links.
        goodput_bytes: bytes sent over a bare socket to measure the link.
        folder: folder of the results of all ranks.
        systems: names of the systems that are measured one after the other.
        blocks: number of blocks that are measured of systems with blocks.
        steps: number of steps, if the rank's module does not compute it.

    """

    work: Work
    network: Network
    goodput_bytes: int
    folder: str
    systems: Sequence[str] = ()
    blocks: int = 0
    steps: Steps = field(default_factory=Steps)

    def encoded(self) -> str:
        """As one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Job:
        """What :meth:`encoded` has given."""
        told = json.loads(text)
        return cls(
            **{
                **told,
                "work": Work(**told["work"]),
                "network": Network(**told["network"]),
                "steps": Steps(**told["steps"]),
            }
        )


_SLOWEST = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}


def bits_per_second(rate: str | None) -> float:
    """Of a rate as ``tc`` reads it; infinite without one.

    Raises:
        ValueError: another unit than kbit, mbit or gbit.

    """
    if rate is None:
        return float("inf")
    for unit, factor in _SLOWEST.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * factor
    raise ValueError(f"a rate ends in kbit, mbit or gbit, got {rate!r}")


def steps_for(system: System, work: Work, network: Network, *, blocks: int) -> Steps:
    """As many as give stable figures in bounded time.

    A block system is warm after its first synchronisation, and measured over whole blocks. What
    sends whole gradients takes 1.5 models' wire time a step or less: few steps suffice.
    """
    control = 10
    if system.block > 1:
        return Steps(control=control, warm_up=system.block, window=blocks * system.block)
    if system.family == "limit" or not system.dense:
        return Steps(control=control, warm_up=6, window=20)
    slow_s = 1.5 * work.model_bytes * 8 / bits_per_second(network.rate)
    return Steps(control=control, warm_up=2, window=3 if slow_s > 4.0 else 10)


def goodput_bytes(network: Network) -> int:
    """Half a second's worth of a shaped link."""
    rate = bits_per_second(network.rate)
    return 1 << 28 if rate == float("inf") else round(rate / 8 / 2)


def key_of(network: Network, work: Mapping[str, Any] | Work) -> str:
    """Under which results of the same kind are stored together."""
    kind = work.kind if isinstance(work, Work) else work["kind"]
    return f"{network}, {kind}"
