"""Logged values of a run over steps, and its settings."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Values of Lightning and of its loggers that are not metrics.
_NO_METRICS = ("epoch", "step", "hp_metric")


@dataclass(frozen=True)
class Series:
    """Values of one name over increasing steps.

    Attributes:
        steps: Lightning's step of each value.
        values: value of each step.

    """

    steps: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Series:
        """Create a series from points in the order of logging. The last point of a step counts."""
        by_step = dict(points)
        steps = sorted(by_step)
        return cls(tuple(steps), tuple(by_step[step] for step in steps))

    @property
    def points(self) -> list[tuple[float, float]]:
        """Step and value of each point."""
        return list(zip(self.steps, self.values, strict=True))

    @property
    def final(self) -> float | None:
        """The last value, if there is one."""
        return self.values[-1] if self.values else None

    def at(self, step: float) -> float | None:
        """The value at a step by linear interpolation, or None outside the range."""
        if not self.steps or not self.steps[0] <= step <= self.steps[-1]:
            return None
        after = bisect_left(self.steps, step)
        if self.steps[after] == step:
            return self.values[after]
        before = after - 1
        share = (step - self.steps[before]) / (self.steps[after] - self.steps[before])
        return self.values[before] + share * (self.values[after] - self.values[before])

    def without_restarts(self) -> Series:
        """Totals that restart when a run is resumed, as one increasing series."""
        base, last, values = 0.0, 0.0, []
        for value in self.values:
            if value < last:
                base += last
            last = value
            values.append(base + value)
        return Series(self.steps, tuple(values))


EMPTY = Series((), ())


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: name in legends and tables.
        folder: directory of the logs.
        series: series by name.
        settings: settings of the strategy by name. Empty if the run has not written them.
        hyperparameters: hyperparameters of the module by name.
        wall: seconds since the first value, by the clock of the logger, if it records times.

    """

    name: str
    folder: Path
    series: Mapping[str, Series]
    settings: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    wall: Series = EMPTY

    @property
    def metrics(self) -> list[str]:
        """Names of the values that the user has logged."""
        return [
            name
            for name in self.series
            if not name.startswith(("hier/", "lr-")) and name not in _NO_METRICS
        ]

    def total(self, name: str) -> Series:
        """A total that increases over the run. Empty if it was not logged."""
        return self.series.get(name, EMPTY).without_restarts()

    @property
    def elapsed(self) -> Series:
        """Seconds since the start of training, over steps."""
        logged = self.total("hier/elapsed_seconds")
        return logged if logged.steps else self.wall

    @property
    def waited(self) -> float | None:
        """Share of the time in which training has waited for other ranks."""
        waited, elapsed = self.total("hier/waited_seconds"), self.total("hier/elapsed_seconds")
        if waited.final is None or not elapsed.final:
            return None
        return waited.final / elapsed.final

    @property
    def bytes_between(self) -> Series:
        """Payload bytes between groups over steps, or inside the group if there is only one.

        A single group sends nothing across groups, even if it spans hosts.
        """
        across = self.total("hier/across/payload_bytes")
        return across if across.final else self.total("hier/group/payload_bytes")


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Paths below the deepest directory that contains all of them."""
    paths = [folder.resolve() for folder in folders]
    above = os.path.commonpath([path.parent for path in paths])
    # Lightning logs to NAME/version_0, and the number alone says little.
    if len(paths) == 1 and paths[0].name.startswith("version_"):
        above = os.path.dirname(above)
    return [str(path.relative_to(above)) for path in paths]
