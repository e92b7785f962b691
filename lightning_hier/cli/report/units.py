"""Units of bytes and seconds for axes and tables."""

from __future__ import annotations

from dataclasses import dataclass

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_SECONDS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Unit:
    """A unit of bytes or seconds, or 1 without a name.

    Attributes:
        size: size in bytes or seconds.
        name: name, empty for plain numbers.

    """

    size: float
    name: str

    def labelled(self, text: str) -> str:
        """``text`` followed by the unit's name in parentheses."""
        return f"{text} ({self.name})" if self.name else text


def unit_of(kind: str, largest: float) -> Unit:
    """The unit for values up to ``largest``; ``kind`` is bytes, seconds or anything else."""
    sizes = {"bytes": _BYTES, "seconds": _SECONDS}.get(kind)
    if sizes is None:
        return Unit(1.0, "")
    # At least two of the larger unit: 90 s is easier to read than 1.5 min.
    fitting = [unit for unit in sizes if largest >= 2 * unit[0]]
    return Unit(*(fitting[0] if fitting else sizes[-1]))


def with_unit(kind: str, value: float) -> str:
    """A value and its unit: ``12.3 MB``, ``95 s``, ``20.0%``, ``0.1234``."""
    if kind in ("share", "steps"):
        return f"{value:.1%}" if kind == "share" else f"{value:g}"
    unit = unit_of(kind, abs(value))
    number = value / unit.size
    text = f"{number:.3g}" if unit.name and abs(number) < 1000 else f"{number:.4g}"
    return f"{text} {unit.name}".strip()
