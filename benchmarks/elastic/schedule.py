"""Random schedule of kills."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Share of the kills in a synchronisation, and longest time from its start to the kill.
_AIMED, _LONGEST_DELAY_S = 1 / 3, 0.1


@dataclass(frozen=True)
class Kill:
    """A kill that is planned or was executed.

    Attributes:
        time_s: seconds from the time when all groups train. After the kill, its time on the
            monotonic clock of the machine.
        group: number of the group.
        delay_s: seconds from the start of the next synchronisation after ``time_s`` to the kill.
            None for a kill at ``time_s``.
        pid: process that was killed, or 0 before the kill.

    """

    time_s: float
    group: int
    delay_s: float | None = None
    pid: int = 0


def draw_kills(seed: int, *, seconds: float, every_s: float, groups: int) -> list[Kill]:
    """Draw a kill of a random group in every interval, at a random time in it.

    Synchronisations take a small share of the time, so a third of the kills wait for one.
    """
    draw = random.Random(seed)
    kills = []
    for number in range(int(seconds / every_s)):
        time_s, group = (number + draw.random()) * every_s, draw.randrange(groups)
        delay_s = draw.uniform(0.0, _LONGEST_DELAY_S) if draw.random() < _AIMED else None
        kills.append(Kill(time_s, group, delay_s))
    return kills
