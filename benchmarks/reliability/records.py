"""What a soak has found: written after each event, so that an end by force loses none of it."""

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
    """One fault and what became of it.

    Attributes:
        kind: of fault.
        strategy: of the job.
        ranks_before: number of ranks that it struck.
        ranks_after: number of ranks that went on.
        lost_steps: steps that had to be made again.
        recovery_s: from the fault to the next step of training.

    """

    kind: str
    strategy: str
    ranks_before: int
    ranks_after: int
    lost_steps: int
    recovery_s: float


@dataclass(frozen=True)
class RunRecord:
    """One job from its beginning to its end.

    Attributes:
        strategy: of the job.
        ranks: numbers of ranks that it ran on, in order, without repetition.
        faults: that it met.
        differences: from the run without faults, where the number of ranks stayed; else None.
        agree: whether all ranks ended with one model.
        incomplete: checkpoints that were recognised as cut off, and passed over.
        seconds: that it took.

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
    """Everything that one soak has found.

    Attributes:
        command: that ran it.
        seed: of everything that was drawn.
        faults: that struck a job at work.
        too_late: faults that found a job just done.
        runs: that came to their end.
        hangs: what did not come to pass in time.
        seconds: that the soak took.

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
        """Whether everything ended as it should."""
        return not self.hangs and all(run.agree and not run.differences for run in self.runs)

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self) | {"versions": versions()}, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Of what took part."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "lightning_hier": lh.__version__,
        "system": f"{platform.system()} {platform.machine()}",
    }


def table(records: Records) -> str:
    """Faults by kind, and runs by strategy, as Markdown."""
    lines = [
        "| fault | struck | recovered | steps lost, median (most) | seconds, median (most) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in sorted({fault.kind for fault in records.faults}):
        own = [fault for fault in records.faults if fault.kind == kind]
        lost = _spread([fault.lost_steps for fault in own], 0)
        seconds = _spread([fault.recovery_s for fault in own], 1)
        lines.append(f"| {kind} | {len(own)} | {len(own)} | {lost} | {seconds} |")
    lines += [
        "",
        "| strategy | runs | faults | same world: every bit equal | world changed: ranks agree |",
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


def _spread(values: list[Any], digits: int) -> str:
    return f"{median(values):.{digits}f} ({max(values):.{digits}f})"
