"""When the storm kills which group."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Of the kills, and seconds between the start of a synchronisation and the kill.
_AIMED, _LONGEST_DELAY_S = 1 / 3, 0.1


@dataclass(frozen=True)
class Kill:
    """A kill.

    Attributes:
        time_s: when, in seconds after all groups train, or, of one that has happened, on the
            monotonic clock of the machine.
        group: number of the group that is killed.
        delay_s: None, or seconds after the start of the first synchronisation from then on.
        pid: process that was killed, of one that has happened.

    """

    time_s: float
    group: int
    delay_s: float | None = None
    pid: int = 0


def draw_kills(seed: int, *, seconds: float, every_s: float, groups: int) -> list[Kill]:
    """One kill of a random group in every interval, at a random time in it.

    A synchronisation takes a small part of the time, so a third of the kills wait for one.
    """
    draw = random.Random(seed)
    kills = []
    for number in range(int(seconds / every_s)):
        time_s, group = (number + draw.random()) * every_s, draw.randrange(groups)
        delay_s = draw.uniform(0.0, _LONGEST_DELAY_S) if draw.random() < _AIMED else None
        kills.append(Kill(time_s, group, delay_s))
    return kills
