"""One axis of a plot: its range, its marks, and where values come to lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from lightning_hier.cli.report.ticks import Unit, log_ticks, ticks, unit_of

Form = Literal["zero", "free", "log"]
"""From zero on; as the values are; or logarithmic, for values above zero."""

# Above this ratio small values are invisible on a straight axis.
_LOGARITHMIC_FROM = 50.0


class Axis:
    """Maps values to places on the page.

    Args:
        values: that come to lie on it; at least one, all finite.
        kind: bytes, seconds or anything else.
        start: where the axis begins on the page.
        end: where it ends.
        form: how it is divided; a free one becomes logarithmic where values differ very much.

    Attributes:
        unit: of the marks.
        marks: round numbers on it, in that unit.

    """

    def __init__(
        self, values: Sequence[float], kind: str, start: float, end: float, *, form: Form
    ) -> None:
        typical = max(map(abs, values))
        if form == "log":
            typical = math.sqrt(min(values) * typical)
        self.unit: Unit = unit_of(kind, typical)
        low, high = min(values) / self.unit.size, max(values) / self.unit.size
        wide = low > 0 and high / low > _LOGARITHMIC_FROM
        self._log = form == "log" or (form == "free" and wide)
        low, high = self._range(low, high, form)
        self._low, self._high = self._scale(low), self._scale(high)
        self._start, self._end = start, end
        self.marks = log_ticks(low, high) if self._log else ticks(low, high)

    def place(self, value: float) -> float:
        """Where a value lies."""
        return self.mark_place(value / self.unit.size)

    def mark_place(self, mark: float) -> float:
        """Where a mark lies."""
        share = (self._scale(mark) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def _range(self, low: float, high: float, form: Form) -> tuple[float, float]:
        if self._log:
            return low / 1.1, high * 1.1
        if form == "zero":
            low, high = min(0.0, low), max(0.0, high)
        if high == low:
            margin = 0.1 * (abs(low) or 1.0)
            return low - margin * (form == "free"), high + margin
        margin = 0.04 * (high - low)
        # Room below, but no negative numbers where there are none.
        return max(low - margin, min(low, 0.0)), high + margin

    def _scale(self, value: float) -> float:
        return math.log10(value) if self._log else value
