"""Figures of one run of one system, computed from the readings of its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Reading = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one run. Times are means over the ranks.

    Attributes:
        step_s: mean time of a step over whole blocks, synchronisations included.
        control_s: mean time of a step of the same ranks without communication.
        between_s: median time of a step that does not end a block.
        synchronisation_s: mean time of a step that ends a block, minus ``between_s``. None if every
            step communicates.
        host_bytes: bytes that a host sends in a step, mean over the hosts. Counted on the link,
            headers included.
        extra_bytes: peak of resident memory minus that of the control, mean over the ranks. None if
            the same processes have trained with other systems before.
        density: share of the elements that GTC sends, or None without GTC.
        goodput: payload bytes per second over the link, measured just before the run. None for one
            host.
        peak_bytes: bytes that a host sends in the step with the most bytes, mean over the hosts.
            None in older results.
        synchronisations_s: ``synchronisation_s`` of each block. Empty in older results.

    """

    step_s: float
    control_s: float
    between_s: float
    synchronisation_s: float | None
    host_bytes: float
    extra_bytes: float | None
    density: float | None
    goodput: float | None
    peak_bytes: float | None = None
    synchronisations_s: Sequence[float] = ()

    @property
    def ratio(self) -> float:
        """Time of a step relative to a step without communication."""
        return self.step_s / self.control_s

    @property
    def link_s(self) -> float:
        """Seconds that the link needs for the bytes that a host sends in a step."""
        return self.host_bytes / self.goodput if self.goodput else 0.0

    @property
    def communication_share(self) -> float:
        """Share of the time of a step that communication takes."""
        return 1 - self.control_s / self.step_s


def figures(readings: Sequence[Reading], block: int) -> Figures:
    """Compute figures from the readings of all ranks.

    Args:
        readings: one reading of each rank. Its window contains whole blocks.
        block: number of steps of a block, or 1 if every step communicates.

    """

    def mean(value: Callable[[Reading], float]) -> float:
        return statistics.fmean(value(reading) for reading in readings)

    # The counters are those of the host, so its ranks read the same values.
    sent = {reading["host"]: reading["sent_bytes"] for reading in readings}
    densities = [
        d for reading in readings if (d := reading["metrics"].get("hier/gtc/density")) is not None
    ]
    between_s = mean(lambda reading: statistics.median(_between(reading["steps_s"], block)))
    ends = [reading["steps_s"][block - 1 :: block] for reading in readings if block > 1]
    synchronisations_s = [statistics.fmean(times) - between_s for times in zip(*ends, strict=True)]
    extra = [reading["extra_peak_bytes"] for reading in readings if "extra_peak_bytes" in reading]
    return Figures(
        step_s=mean(lambda reading: statistics.fmean(reading["steps_s"])),
        control_s=mean(lambda reading: statistics.fmean(reading["control_s"])),
        between_s=between_s,
        synchronisation_s=statistics.fmean(synchronisations_s) if synchronisations_s else None,
        host_bytes=statistics.fmean(statistics.fmean(steps) for steps in sent.values()),
        extra_bytes=statistics.fmean(extra) if extra else None,
        density=statistics.fmean(densities) if densities else None,
        goodput=readings[0]["goodput"],
        peak_bytes=statistics.fmean(max(steps) for steps in sent.values()),
        synchronisations_s=synchronisations_s,
    )


def _between(steps_s: Sequence[float], block: int) -> list[float]:
    if block == 1:
        return list(steps_s)
    return [seconds for number, seconds in enumerate(steps_s, start=1) if number % block]
