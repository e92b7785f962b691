"""Long and noisy curves, so that several can be read in one small plot."""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]

# A plot is about 300 points wide.
_MOST_POINTS = 400
_NOISY_FROM = 30
_WINDOW_SHARE = 0.04


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """The lowest and the highest point of each of so many pieces, and the ends."""
    if len(points) <= _MOST_POINTS:
        return points
    pieces = _MOST_POINTS // 2
    kept = {0, len(points) - 1}
    for piece in range(pieces):
        places = range(len(points) * piece // pieces, len(points) * (piece + 1) // pieces)
        kept.add(min(places, key=lambda place: points[place][1]))
        kept.add(max(places, key=lambda place: points[place][1]))
    return [points[place] for place in sorted(kept)]


def smoothed(points: Sequence[Point]) -> list[Point] | None:
    """The running mean of many points that go up and down; None where the points are clear."""
    if len(points) < _NOISY_FROM or not _goes_up_and_down([value for _, value in points]):
        return None
    reach = max(2, round(len(points) * _WINDOW_SHARE / 2))
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    mean = []
    for place, (at, _) in enumerate(points):
        first, last = max(0, place - reach), min(len(points), place + reach + 1)
        mean.append((at, (sums[last] - sums[first]) / (last - first)))
    return mean


def _goes_up_and_down(values: Sequence[float]) -> bool:
    moves = [after - before for before, after in zip(values, values[1:], strict=False)]
    turns = sum(one * other < 0 for one, other in zip(moves, moves[1:], strict=False))
    return turns > len(values) / 4
