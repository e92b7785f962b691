"""Round numbers for axes, and numbers in words for people."""

from __future__ import annotations

import math
from dataclasses import dataclass

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Unit:
    """What an axis counts in.

    Attributes:
        size: one of it, in what the values are in.
        name: for the label; empty for plain numbers.

    """

    size: float
    name: str


def unit_of(kind: str, largest: float) -> Unit:
    """The unit in which values up to ``largest`` read well; ``kind``: bytes, seconds or other."""
    sizes = {"bytes": _BYTES, "seconds": _SECONDS}.get(kind)
    if sizes is None:
        return Unit(1.0, "")
    # Two of the larger unit at least: 90 seconds read better than 1.5 minutes.
    fitting = [own for own in sizes if largest >= 2 * own[0]]
    return Unit(*(fitting[0] if fitting else sizes[-1]))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most ``most`` + 1 of them."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    digits = 12 - math.floor(math.log10(step))  # 3 * 0.1 is not 0.3
    return [round(number * step, digits) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within the range, and 2 and 5 between them where those are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, (len(powers) - 1) // 5)
    marks = [10.0**power for power in powers if power % every == 0]
    within = [mark for mark in marks if low <= mark <= high]
    if len(within) < 3:
        finer = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        within = [mark for mark in finer if low <= mark <= high]
    return within


def short(value: float) -> str:
    """A number with few digits: 0.05, 12, 1.5k, 2e-07."""
    size = abs(value)
    if size >= 1e6 or (0 < size < 1e-3):
        return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")
    if size >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"


def said(kind: str, value: float) -> str:
    """A value with its unit: ``12.3 MB``, ``95 s``, ``0.1234``."""
    unit = unit_of(kind, abs(value))
    number = value / unit.size
    text = f"{number:.3g}" if unit.name and abs(number) < 1000 else f"{number:.4g}"
    return f"{text} {unit.name}".strip()
