"""Results of a run, computed from the logs of its groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from benchmarks.elastic.schedule import Kill
from benchmarks.elastic.supervised import RunRecord, Setup
from examples.elastic.step_log import Line

# Ends of blocks over which the loss at the end is averaged.
_LAST_BLOCKS = 10


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Results of a run.

    Attributes:
        seconds: from the moment at which all groups train to the end.
        kills: number of kills by the state of the group: "block", "synchronisation" (including the
            work before and after it), and "start" if it had not restarted since the last kill.
        exits: exit codes of processes that exited without a kill.
        synchronisations: number of synchronisations by the end of the run.
        steps: steps of all groups in blocks that were synchronised.
        groups: mean number of groups in a synchronisation.
        different: synchronisations after which the models of the groups are not equal. None if they
            are not compared.
        back_s: for each kill, seconds until the group trains again.
        not_back: kills of groups that did not train again before the end.
        longest_pause_s: longest time between two steps of a group that was not killed, or None.
        longest_stop_s: longest time without a step of any group.
        loss: loss on the validation data, mean of the last ten synchronisations.

    """

    seconds: float
    kills: dict[str, int]
    exits: list[int]
    synchronisations: int
    steps: int
    groups: float
    different: int | None
    back_s: list[float]
    not_back: int
    longest_pause_s: float | None
    longest_stop_s: float
    loss: float


def measure(record: RunRecord, setup: Setup, *, independent: bool = True) -> Measures:
    """Measure a run.

    Args:
        record: events and logs of the run.
        setup: settings of the run.
        independent: whether groups are independent jobs. In one job, all ranks stop if one of them
            is killed, and repeat steps. Pauses and models are not compared then.

    Raises:
        ValueError: no block was synchronised.

    """
    ends = _ends_of_blocks(record.logs)
    if not ends:
        raise ValueError("no block of the run was synchronised")
    back = [_back_s(kill, record.logs[kill.group]) for kill in record.kills]
    count = sum(len(of_block) for of_block in ends.values())
    last = [ends[step] for step in sorted(ends)[-_LAST_BLOCKS:]]
    losses = [line.valid_loss for lines in last for line in lines.values()]
    kinds = [_kind(kill, record.logs[kill.group], setup) for kill in record.kills]
    return Measures(
        seconds=record.ended_s - record.begun_s,
        kills={kind: kinds.count(kind) for kind in sorted(set(kinds))},
        exits=record.exits,
        synchronisations=max(ends) // setup.block_size,
        steps=setup.block_size * count,
        groups=count / len(ends),
        different=_different(record.logs) if independent else None,
        back_s=[seconds for seconds in back if seconds is not None],
        not_back=back.count(None),
        longest_pause_s=_longest_pause_s(record) if independent else None,
        longest_stop_s=max(b - a for a, b in pairwise(_step_times(record))),
        loss=fmean(loss for loss in losses if loss is not None),
    )


def _ends_of_blocks(logs: Sequence[Sequence[Line]]) -> dict[int, dict[int, Line]]:
    """Return the lines at the ends of blocks, by step and group. A repeated line counts once."""
    ends: dict[int, dict[int, Line]] = {}
    for group, lines in enumerate(logs):
        for line in lines:
            if line.event == "block":
                ends.setdefault(line.step, {})[group] = line
    return ends


def _different(logs: Sequence[Sequence[Line]]) -> int:
    """Return the number of ends of blocks at which logged models differ."""
    digests: dict[int, set[str | None]] = {}
    for line in (line for lines in logs for line in lines if line.event == "block"):
        digests.setdefault(line.step, set()).add(line.digest)
    return sum(len(models) > 1 for models in digests.values())


def _back_s(kill: Kill, lines: Sequence[Line]) -> float | None:
    """Return the seconds from a kill to the next step of the group, or None without one."""
    steps = (line.time_s for line in lines if line.loss is not None)
    first = next((moment for moment in steps if moment > kill.time_s), None)
    return None if first is None else first - kill.time_s


def _kind(kill: Kill, lines: Sequence[Line], setup: Setup) -> str:
    """Return the state of the group at a kill: "start", "synchronisation" or "block"."""
    before = [line for line in lines if line.time_s <= kill.time_s and line.pid == kill.pid]
    if not before:
        return "start"
    last, since_s = before[-1], kill.time_s - before[-1].time_s
    computed = (last.step + 1) % setup.block_size == 0 and since_s > setup.step_s
    return "synchronisation" if computed else "block"


def _longest_pause_s(record: RunRecord) -> float:
    pauses = [
        later.time_s - earlier.time_s
        for lines in record.logs
        for earlier, later in pairwise(lines)
        if earlier.pid == later.pid and later.event != "end"
    ]
    return max(pauses)


def _step_times(record: RunRecord) -> list[float]:
    return sorted(line.time_s for lines in record.logs for line in lines if line.loss is not None)
