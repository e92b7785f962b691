"""Tables of results, for the terminal and for reports."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(f"| {' | '.join(_padded(line, widths))} |" for line in lines)


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]


def percent(share: float) -> str:
    """A share in percent with one decimal."""
    return f"{100 * share:.1f}%"


def mean_and_deviation(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation; of one value the value."""
    around = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{around}"


def megabytes(number: int) -> str:
    """Bytes in megabytes (10**6)."""
    return f"{number / 1e6:.1f}"
