"""Checks that the errors of a run are clear: those of invalid settings and of planted faults."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.fuzz.case import Case
from tests.ranks import RankOutcome

KINDS = frozenset(
    {
        "ValueError",
        "TypeError",
        "PeerError",
        "NonFiniteModelError",
        "OutOfStepError",
        "OSError",
        "MisconfigurationException",
    }
)
# Errors on the other ranks after an error of one rank.
_OF_PEERS = frozenset({"PeerError"})
_LOW_LEVEL = re.compile(r"third_party/gloo|enforce fail|c10::|terminate called|^Traceback", re.M)
_SHORTEST_MESSAGE = 40


def kind_of(outcome: RankOutcome) -> str:
    """Name of the exception's class, without its module."""
    error = outcome.error or "died"
    return error.split(":", 1)[0].rsplit(".", 1)[-1]


def errors_are_clear(case: Case, outcomes: Sequence[RankOutcome]) -> str | None:
    """A run that fails ends on every rank with an error of a documented class.

    If a rank is killed or raises, this only applies to the others. Their PeerError must name the
    rank.
    """
    fault = case.fault
    source = fault.rank if fault is not None and fault.kind != "nan" else None
    others = [outcome for outcome in outcomes if outcome.rank != source]
    for outcome in others:
        if outcome.died:
            return f"rank {outcome.rank} died with exit code {outcome.exit_code}"
        if outcome.error is not None and (problem := _unclear(outcome)) is not None:
            return f"rank {outcome.rank}: {problem}"
    silent = [outcome.rank for outcome in others if outcome.error is None]
    failing = [outcome.rank for outcome in others if outcome.error is not None]
    if silent and failing:
        return f"ranks {silent} succeeded, ranks {failing} ended with an error"
    if source is not None:
        for outcome in others:
            if kind_of(outcome) in _OF_PEERS and not _names(outcome.error or "", source):
                return f"rank {outcome.rank} does not name rank {source}: {outcome.error}"
    return None


def _unclear(outcome: RankOutcome) -> str | None:
    kind, message = kind_of(outcome), (outcome.error or "").partition(": ")[2]
    if kind not in KINDS:
        return f"{kind} is not a documented error class: {message[:200]}"
    if len(message) < _SHORTEST_MESSAGE:
        return f"the message of {kind} is too short: {message!r}"
    if kind not in _OF_PEERS and _LOW_LEVEL.search(message):
        return f"the message of {kind} is that of a lower layer: {message[:200]}"
    raised_in = re.findall(r'File "([^"]+)"', outcome.traceback)
    if raised_in and not re.search(r"/(lightning_hier|lightning)/", raised_in[-1]):
        return f"{kind} was raised in {raised_in[-1].rpartition('/')[2]}: {message[:200]}"
    return None


def _names(message: str, rank: int) -> bool:
    numbers = re.findall(r"ranks? ([\d, and]+)", message)
    return any(str(rank) in re.findall(r"\d+", each) for each in numbers)
