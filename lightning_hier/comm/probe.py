"""How long messages take inside hosts and between them: what `lightning-hier measure` times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.channel import Channel, Pending
from lightning_hier.comm.communicators import Communicators

Where = Literal["within", "between"]
Operation = Literal["all_reduce", "send"]

_KIND = "probe"


@dataclass(frozen=True, kw_only=True)
class LinkReading:
    """What some ranks took for one operation with messages of one size.

    Attributes:
        where: inside a host, or between hosts.
        operation: an all-reduce of the ranks, or one message from the first to the second.
        ranks: who took part.
        payload_bytes: of the tensor.
        seconds: median.
        fastest: smallest.
        slowest: largest.
        processor_s: time that the cores of the first rank's host spent in the first rank's process,
            on average: sending and receiving through sockets costs that.

    """

    where: Where
    operation: Operation
    ranks: tuple[int, ...]
    payload_bytes: int
    seconds: float
    fastest: float
    slowest: float
    processor_s: float


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """What is timed, and for how long.

    Attributes:
        sizes: bytes of the messages; whole numbers of float32.
        repeats: how often each is timed, after two that do not count.
        budget_s: about how long the repetitions of one size may take; a slow link gets fewer, but
            at least one.

    Raises:
        ValueError: a value is out of range.

    """

    sizes: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
    repeats: int = 20
    budget_s: float = 2.0

    def __post_init__(self) -> None:
        """Check the values."""
        for size in self.sizes:
            if size < 4 or size % 4:
                raise ValueError(f"sizes must be multiples of 4 bytes, got {size}")
        if len(set(self.sizes)) < 2:
            raise ValueError(
                f"sizes must have two or more different ones, to tell latency from bandwidth, got "
                f"{list(self.sizes)}"
            )
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if not self.budget_s > 0:
            raise ValueError(f"budget_s must be above 0, got {self.budget_s}")


def measure_links(communicators: Communicators, settings: ProbeSettings) -> list[LinkReading]:
    """Time messages inside every host and between hosts; nothing else may run on the links.

    Inside hosts all are timed at the same time, between hosts one pair of neighbours after the
    other and then all first ranks together, so that a slow link can be told. A collective of the
    world: every rank must call it, and all get the same.

    Args:
        communicators: with a group for each host.
        settings: what is timed.

    Raises:
        PeerError: a rank did not take part within the time limit; names it.

    """
    probe = _Probe(communicators, settings)
    group, across = communicators.group, communicators.across
    if group.size > 1:
        probe.turn("within", group, None)
        probe.turn("within", group, (0, 1))
    if across.size > 1:
        first = across if group.position == 0 else None
        probe.turn("between", first, None)
        for pair in _neighbours(across.size):
            probe.turn("between", first, pair)
    return probe.readings()


def _neighbours(hosts: int) -> list[tuple[int, int]]:
    ring = [(host, (host + 1) % hosts) for host in range(hosts)]
    return ring[:1] if hosts == 2 else ring


class _Probe:
    """One rank's part: takes turns with all others, so that no two disturb each other."""

    def __init__(self, communicators: Communicators, settings: ProbeSettings) -> None:
        self._communicators = communicators
        self._settings = settings
        self._found: list[LinkReading] = []
        self._turns = 0

    def turn(self, where: Where, channel: Channel | None, pair: tuple[int, int] | None) -> None:
        """Time all sizes on a channel, or between two of its ranks; then wait for all others.

        Args:
            where: what the channel connects.
            channel: None on a rank that only waits.
            pair: positions; None times an all-reduce of all.

        """
        self._turns += 1
        with self._communicators.progress.at(f"turn {self._turns} of measuring the links"):
            if channel is not None and (pair is None or channel.position in pair):
                for size in self._settings.sizes:
                    self._time(where, channel, pair, size)
            self._everybody()

    def readings(self) -> list[LinkReading]:
        """What all ranks have found. A collective of the world."""
        own = [asdict(reading) for reading in self._found]
        with self._communicators.progress.at("the exchange of what was measured"):
            rows = gather_json(own, self._communicators.device)
        return [
            LinkReading(**{**reading, "ranks": tuple(reading["ranks"])})
            for row in rows
            for reading in row
        ]

    def _time(
        self, where: Where, channel: Channel, pair: tuple[int, int] | None, size: int
    ) -> None:
        tensor = torch.zeros(size // 4, device=self._communicators.device)
        operate = (
            _all_reduce(channel, tensor) if pair is None else _ping_pong(channel, tensor, pair)
        )
        operate()  # connections are made with the first message
        # Both sides must repeat equally often: the first one says how often.
        repeats = torch.tensor([self._fitting(self._seconds(operate))], device=tensor.device)
        source = 0 if pair is None else pair[0]
        if pair is None:
            channel.broadcast_(repeats, _KIND).wait()
        else:
            _wait(channel.pass_(repeats, *pair, _KIND))
        busy = time.process_time()
        times = [self._seconds(operate) for _ in range(int(repeats))]
        busy = (time.process_time() - busy) / len(times)
        if channel.position != source:
            return
        ways = 1 if pair is None else 2
        one_way = [seconds / ways for seconds in times]
        self._found.append(
            LinkReading(
                where=where,
                operation="all_reduce" if pair is None else "send",
                ranks=tuple(channel.ranks[p] for p in (pair or range(channel.size))),
                payload_bytes=size,
                seconds=median(one_way),
                fastest=min(one_way),
                slowest=max(one_way),
                processor_s=busy / ways,
            )
        )

    def _fitting(self, seconds: float) -> int:
        return max(1, min(self._settings.repeats, int(self._settings.budget_s / seconds)))

    def _seconds(self, operate: Callable[[], None]) -> float:
        device = self._communicators.device
        _settle(device)
        begun = time.perf_counter()
        operate()
        _settle(device)
        return time.perf_counter() - begun

    def _everybody(self) -> None:
        here = torch.zeros(1, device=self._communicators.device)
        self._communicators.world.all_reduce_(here, _KIND).wait()


def _all_reduce(channel: Channel, tensor: Tensor) -> Callable[[], None]:
    return lambda: channel.all_reduce_(tensor, _KIND).wait()


def _ping_pong(channel: Channel, tensor: Tensor, pair: Sequence[int]) -> Callable[[], None]:
    there, back = pair

    def operate() -> None:
        _wait(channel.pass_(tensor, there, back, _KIND))
        _wait(channel.pass_(tensor, back, there, _KIND))

    return operate


def _wait(started: Sequence[Pending]) -> None:
    for pending in started:
        pending.wait()


def _settle(device: torch.device) -> None:
    # What is queued on a GPU is not done when the call returns.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
