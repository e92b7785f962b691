"""A paper's tables: rows of runs that differ in their seed, done several at a time, and kept."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tqdm import tqdm

from examples.run_store import RunStore
from examples.studies.speech import SpeechResult, SpeechRun
from examples.tables import markdown, spread

Verdict = Literal["holds", "does not hold", "cannot be seen at this size", "one seed says nothing"]


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        labels: what stands in its first columns.
        run: its settings, with seed 0.
        paper: what the paper has there: relative change of the word errors in %, or None.

    """

    labels: tuple[str, ...]
    run: SpeechRun
    paper: float | None = None


@dataclass(frozen=True)
class Found:
    """A row with what came of it, one value for each seed.

    Attributes:
        row: that was run.
        frame_errors: in %.
        word_errors: in %.
        against: word errors of the baseline, in %, with the same seeds.
        steps: of every worker.

    """

    row: Row
    frame_errors: tuple[float, ...]
    word_errors: tuple[float, ...]
    against: tuple[float, ...]
    steps: int

    @property
    def reduction(self) -> float:
        """Relative reduction of the mean word errors against the baseline, in %; < 0 is worse."""
        base = statistics.mean(self.against)
        return 100.0 * (base - statistics.mean(self.word_errors)) / base

    @property
    def uncertainty(self) -> float:
        """Standard error of :attr:`reduction` from the spread over the seeds; 0 with one seed."""
        base = statistics.mean(self.against)
        return 100.0 * (_error(self.word_errors) ** 2 + _error(self.against) ** 2) ** 0.5 / base


Rows = dict[tuple[str, ...], Found]
"""Rows of a table by their labels."""


@dataclass(frozen=True)
class Claim:
    """Something that the paper says of a table, answered.

    Attributes:
        text: what it says.
        verdict: whether it holds here.
        because: the figures.

    """

    text: str
    verdict: Verdict
    because: str


@dataclass(frozen=True)
class Table:
    """One table of a paper.

    Attributes:
        title: with its number in the paper.
        columns: names of the labels.
        baseline: one worker, with which all rows are compared.
        rows: in order.
        claims: answers what the paper says of it, from its rows by their labels.

    """

    title: str
    columns: tuple[str, ...]
    baseline: SpeechRun
    rows: Sequence[Row]
    claims: Callable[[Rows], list[Claim]]


class Study:
    """Runs tables, some runs at a time, and knows what came of them.

    Args:
        folder: where runs are kept; a study goes on where it stopped.
        seeds: of each row.
        jobs: runs at a time; each takes one core.

    """

    def __init__(self, folder: Path, *, seeds: int, jobs: int) -> None:
        self._store = RunStore(
            folder,
            module="examples.studies.speech",
            settings=SpeechRun,
            result=SpeechResult,
        )
        self._seeds = range(seeds)
        self._jobs = jobs

    def train(self, tables: Iterable[Table]) -> None:
        """Do what has not been done, all rows with one seed before the next."""
        rows = [
            run for table in tables for run in [table.baseline, *(row.run for row in table.rows)]
        ]
        runs = [replace(run, seed=seed) for seed in self._seeds for run in rows]
        distinct = list({repr(run.anywhere()): run for run in runs}.values())
        with ThreadPoolExecutor(self._jobs) as pool, tqdm(total=len(distinct), unit="run") as bar:
            for _ in pool.map(lambda run: self._store.results([run]), distinct):
                bar.update()

    def found(self, table: Table) -> Rows:
        """The rows of a table that has been trained, by their labels."""
        return {row.labels: self._found(row, table.baseline) for row in table.rows}

    def alone(self, table: Table) -> Found:
        """The baseline of a table."""
        return self._found(Row(("one worker",), table.baseline), table.baseline)

    def _found(self, row: Row, baseline: SpeechRun) -> Found:
        own, base = self._of_seeds(row.run), self._of_seeds(baseline)
        return Found(
            row,
            tuple(100.0 * result.frame_error_rate for result in own),
            tuple(100.0 * result.word_error_rate for result in own),
            tuple(100.0 * result.word_error_rate for result in base),
            own[0].steps,
        )

    def _of_seeds(self, run: SpeechRun) -> list[SpeechResult]:
        return self._store.results([replace(run, seed=seed) for seed in self._seeds])


def fewer(rows: Rows, pair: tuple[tuple[str, ...], tuple[str, ...]], text: str) -> Claim:
    """Answer a claim that one row has fewer word errors than another.

    The answer is open where their means differ by less than two standard errors.
    """
    first, second = (rows[labels] for labels in pair)
    gap = statistics.mean(second.word_errors) - statistics.mean(first.word_errors)
    doubt = 2.0 * (_error(first.word_errors) ** 2 + _error(second.word_errors) ** 2) ** 0.5
    verdict: Verdict = "holds" if gap > 0 else "does not hold"
    if len(first.word_errors) < 2:
        verdict = "one seed says nothing"
    elif abs(gap) <= doubt:
        verdict = "cannot be seen at this size"
    errors = f"{spread(first.word_errors)} against {spread(second.word_errors)}% word errors"
    return Claim(text, verdict, errors)


def lines(table: Table, found: Rows) -> str:
    """A table in Markdown."""
    header = (*table.columns, "frame errors %", "word errors %", "reduction %", "paper's", "steps")
    rows = [
        (
            *labels,
            spread(own.frame_errors),
            spread(own.word_errors),
            f"{own.reduction:+.1f} ± {own.uncertainty:.1f}",
            "-" if own.row.paper is None else f"{own.row.paper:+.1f}",
            str(own.steps),
        )
        for labels, own in found.items()
    ]
    return markdown(header, rows)


def write_csv(path: Path, table: Table, found: Rows) -> None:
    """A line for each row and seed."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*table.columns, "seed", "frame_error_rate", "word_error_rate", "steps"])
        for labels, own in found.items():
            for seed, errors in enumerate(zip(own.frame_errors, own.word_errors, strict=True)):
                writer.writerow([*labels, seed, *(error / 100.0 for error in errors), own.steps])


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
