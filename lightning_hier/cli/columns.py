"""Tables in letters alone."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows of as many cells each, in columns.

    Args:
        rows: the first one is the heading.
        left: number of columns that begin together; numbers, behind them, end together.

    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
