"""Results of a soak test, written after each run, so that an interruption loses none of them."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import lightning
import torch

import lightning_hier as lh
from examples.tables import markdown, spread

Record = TypeVar("Record")


@dataclass(frozen=True)
class FaultRecord:
    """One fault and its consequences.

    Attributes:
        kind: kind of fault.
        strategy: strategy of the job.
        ranks_before: number of ranks before the fault.
        ranks_after: number of ranks after the recovery.
        lost_steps: steps that were repeated.
        recovery_s: seconds from the fault to the next step.

    """

    kind: str
    strategy: str
    ranks_before: int
    ranks_after: int
    lost_steps: int
    recovery_s: float


@dataclass(frozen=True)
class RunRecord:
    """One complete run of a job.

    Attributes:
        strategy: strategy of the job.
        ranks: successive numbers of ranks.
        faults: number of faults.
        differences: tensors that differ from the run without faults. None if the number of ranks
            changed.
        agree: whether all ranks have the same final model.
        incomplete: number of incomplete checkpoints that were skipped.
        seconds: duration of the run.

    """

    strategy: str
    ranks: list[int]
    faults: int
    differences: list[str] | None
    agree: bool
    incomplete: int
    seconds: float


@dataclass
class Records:
    """All results of a soak test.

    Attributes:
        command: command of the test.
        seed: seed of all random numbers.
        faults: faults that hit a running job.
        too_late: number of faults that hit a job which had just finished.
        runs: complete runs.
        hangs: messages of waits that exceeded their time limit.
        seconds: duration of the test.

    """

    command: str
    seed: int
    faults: list[FaultRecord] = field(default_factory=list)
    too_late: int = 0
    runs: list[RunRecord] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether there were no hangs, and all final models are as required."""
        return not self.hangs and all(run.agree and not run.differences for run in self.runs)

    def write(self, path: Path) -> None:
        """Write all results as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self) | {"versions": versions()}, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of Python, the libraries and the system."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "lightning_hier": lh.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def table(records: Records) -> str:
    """Return tables of faults by kind, and of runs by strategy, as Markdown."""
    faults = _by(records.faults, lambda fault: fault.kind)
    of_kinds = [
        (
            kind,
            str(len(own)),
            spread([fault.lost_steps for fault in own], 0),
            spread([fault.recovery_s for fault in own], 1),
        )
        for kind, own in faults.items()
    ]
    of_strategies = []
    for strategy, runs in _by(records.runs, lambda run: run.strategy).items():
        same = [run for run in runs if run.differences is not None]
        changed = [run for run in runs if run.differences is None]
        of_strategies.append(
            (
                strategy,
                str(len(runs)),
                str(sum(run.faults for run in runs)),
                f"{sum(not run.differences for run in same)} of {len(same)}",
                f"{sum(run.agree for run in changed)} of {len(changed)}",
            )
        )
    tables = [
        markdown(
            ("fault", "injected and recovered", "steps lost, median (range)", "seconds"), of_kinds
        ),
        markdown(
            ("strategy", "runs", "faults", "same world: bit for bit equal",
             "world changed: ranks agree"),
            of_strategies,
        ),
    ]  # fmt: skip
    return "\n\n".join(tables)


def _by(records: Sequence[Record], name: Callable[[Record], str]) -> dict[str, list[Record]]:
    names = sorted(set(map(name, records)))
    return {own: [record for record in records if name(record) == own] for own in names}
