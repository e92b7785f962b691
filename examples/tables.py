"""Tables of results for the terminal and for reports."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(_padded(line, widths))} |" for line in lines)


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]


def percent(fraction: float) -> str:
    """Return a fraction in percent with one decimal."""
    return f"{100 * fraction:.1f}%"


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean and the standard deviation, or the value if there is only one."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, with the smallest and the largest value if there are several."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def megabytes(number: int) -> str:
    """Return a number of bytes in megabytes (10**6) with one decimal."""
    return f"{number / 1e6:.1f}"
