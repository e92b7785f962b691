"""What the readings of the ranks come to: the figures of one run of one system."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Reading = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one run.

    Attributes:
        step_s: mean over whole blocks, synchronisations included.
        control_s: mean of the same ranks without communication.
        between_s: median step that ends no block.
        synchronisation_s: what a step that ends a block takes longer than ``between_s``, mean;
            None where every step communicates.
        host_bytes: that a host sends in a step, by the counters of its link, headers included;
            mean over the hosts.
        extra_bytes: peak of resident memory above that of the control, mean over the ranks; None
            if the same processes have trained with other systems before.
        density: elements that GTC has sent, of all; None without GTC.
        goodput: payload bytes per second that the link carried just before; None for one host.
        peak_bytes: that a host sends in the step in which it sends the most, mean over the hosts;
            None in older results.
        synchronisations_s: the same as ``synchronisation_s`` of each block; empty in older results.

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
        """A step against one without communication."""
        return self.step_s / self.control_s

    @property
    def communication_s(self) -> float:
        """What communication adds to a step."""
        return self.step_s - self.control_s

    @property
    def link_s(self) -> float:
        """What the link alone takes for what a host sends in a step."""
        return self.host_bytes / self.goodput if self.goodput else 0.0

    def least_ratio(self, *, overlap: bool) -> float:
        """What ``ratio`` would be if the link were all that takes time beside the step.

        Args:
            overlap: whether models travel while steps are computed.

        """
        waited = self.link_s / self.control_s
        return max(1.0, waited) if overlap else 1.0 + waited

    @property
    def communication_share(self) -> float:
        """Of a step."""
        return self.communication_s / self.step_s


def figures(readings: Sequence[Reading], block: int) -> Figures:
    """Out of what all ranks have written.

    Args:
        readings: one of each rank; the windows hold whole blocks and begin with one.
        block: steps of a block; 1 where every step communicates.

    """

    def mean(value: Callable[[Reading], float]) -> float:
        return statistics.fmean(value(own) for own in readings)

    # The ranks of a host read the same counters.
    sent = {own["host"]: own["sent_bytes"] for own in readings}
    densities = [d for own in readings if (d := own["metrics"].get("hier/gtc/density")) is not None]
    between_s = mean(lambda own: statistics.median(_between(own["steps_s"], block)))
    ends = [own["steps_s"][block - 1 :: block] for own in readings if block > 1]
    synchronisations_s = [statistics.fmean(taken) - between_s for taken in zip(*ends, strict=True)]
    extra = [own["extra_peak_bytes"] for own in readings if "extra_peak_bytes" in own]
    return Figures(
        step_s=mean(lambda own: statistics.fmean(own["steps_s"])),
        control_s=mean(lambda own: statistics.fmean(own["control_s"])),
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
    return [taken for number, taken in enumerate(steps_s, start=1) if number % block]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and, of several, the smallest and the largest."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
