"""Runs a case on real ranks, and checks its errors and properties."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.errors import errors_are_clear, kind_of
from tests.fuzz.properties import PROPERTIES, Runs
from tests.fuzz.training import resume, train
from tests.ranks import RankOutcome, rank_outcomes

# Limit of a run on all ranks. A case takes some seconds on a machine that is not busy.
LIMIT_S = 90.0
SUCCESS = "success"
_TRACEBACK_LINES = 16

# Suppresses DDP's warning of find_unused_parameters if all parameters are used. The process from
# which ranks fork reads this variable.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


@dataclass(frozen=True)
class Verdict:
    """The result of a case.

    Attributes:
        end: ``"success"``, or the class of a clear error, or the name of the failed property.
        message: first line of the error, or the problem that the property reports.
        failed: whether a property failed.
        traceback: traceback of the rank that failed first, if any.

    """

    end: str
    message: str = ""
    failed: bool = False
    traceback: str = ""


def check(case: Case, *, limit_s: float = LIMIT_S) -> Verdict:
    """Train, validate, save and resume with the settings of a case, and check every property."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        try:
            return _check(case, folder, limit_s)
        except TimeoutError as error:
            return Verdict("ends_in_time", "ranks did not end", True, str(error))


def _check(case: Case, folder: Path, limit_s: float) -> Verdict:
    killed = case.fault is not None and case.fault.kind == "kill"
    outcomes = _run(train, case, case.ranks, limit_s, folder)
    verdict = _of_errors(case, outcomes)
    runs = Runs(case, [])
    if verdict is None and not any(outcome.failed for outcome in outcomes):
        results = [outcome.result for outcome in outcomes]
        plain = [result["plain"] for result in results if "plain" in result]
        runs = Runs(case, [result["evaluated"] for result in results], plain)
        verdict = _of_properties(runs)
    resumes = case.resume_ranks is not None and (killed or (folder / "saved.ckpt").exists())
    if (verdict is not None and (verdict.failed or not killed)) or not resumes:
        return verdict or Verdict(SUCCESS)
    if killed:
        runs = Runs(replace(case, fault=None), [])  # there is no complete run to compare with
    return _resume(runs, folder, limit_s, killed=killed)


def _resume(runs: Runs, folder: Path, limit_s: float, *, killed: bool) -> Verdict:
    case = runs.case
    outcomes = _run(resume, case, case.resume_ranks or 1, limit_s, folder, killed)
    verdict = _of_errors(case, outcomes)
    if verdict is not None:
        return verdict
    runs = replace(runs, resumed=[outcome.result for outcome in outcomes])
    return _of_properties(runs) or Verdict(f"{SUCCESS} after a kill" if killed else SUCCESS)


def _run(
    function: Callable[..., Any], case: Case, ranks: int, limit_s: float, *arguments: Any
) -> Sequence[RankOutcome]:
    per_host = ranks // case.hosts if ranks % case.hosts == 0 else ranks
    return rank_outcomes(
        function,
        ranks,
        case,
        *arguments,
        timeout_s=limit_s,
        ranks_per_node=per_host,
    )


def _of_errors(case: Case, outcomes: Sequence[RankOutcome]) -> Verdict | None:
    """The verdict of errors, or None if all ranks succeeded, except for those with a fault."""
    problem = errors_are_clear(case, outcomes)
    failing = sorted((o for o in outcomes if o.error), key=lambda o: o.ended_at_s)
    source = case.fault.rank if case.fault is not None else None
    # The planted error of one rank is not checked.
    first = next((o for o in failing if o.rank != source), failing[0] if failing else None)
    if problem is not None:
        return Verdict(
            "errors_are_clear", problem, True, _shortened(first.traceback if first else "")
        )
    if first is None:
        return None
    return Verdict(kind_of(first), (first.error or "").splitlines()[0])


def _shortened(traceback: str) -> str:
    lines = [line for line in traceback.splitlines() if not re.fullmatch(r"[\s^~]*", line)]
    return "\n".join(line[:300] for line in lines[-_TRACEBACK_LINES:])


def _of_properties(runs: Runs) -> Verdict | None:
    for own in PROPERTIES:
        problem = own(runs)
        if problem is not None:
            return Verdict(own.__name__, problem, True)
    return None
