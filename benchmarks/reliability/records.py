"""Results of a soak test, written after each run, so that an interruption loses none of them."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import lightning
import torch

import lightning_hier as lh


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
    lines = [
        "| fault | injected | recovered | steps lost, median (maximum) "
        "| seconds, median (maximum) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in sorted({fault.kind for fault in records.faults}):
        faults = [fault for fault in records.faults if fault.kind == kind]
        lost = _median_and_maximum([fault.lost_steps for fault in faults], 0)
        seconds = _median_and_maximum([fault.recovery_s for fault in faults], 1)
        lines.append(f"| {kind} | {len(faults)} | {len(faults)} | {lost} | {seconds} |")
    lines += [
        "",
        "| strategy | runs | faults | same world: bit for bit equal | world changed: ranks agree |",
        "| --- | --- | --- | --- | --- |",
    ]
    for strategy in sorted({run.strategy for run in records.runs}):
        runs = [run for run in records.runs if run.strategy == strategy]
        same = [run for run in runs if run.differences is not None]
        changed = [run for run in runs if run.differences is None]
        lines.append(
            f"| {strategy} | {len(runs)} | {sum(run.faults for run in runs)} "
            f"| {sum(not run.differences for run in same)} of {len(same)} "
            f"| {sum(run.agree for run in changed)} of {len(changed)} |"
        )
    return "\n".join(lines)


def _median_and_maximum(values: list[Any], digits: int) -> str:
    return f"{median(values):.{digits}f} ({max(values):.{digits}f})"
