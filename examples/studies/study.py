"""A paper's tables: rows of runs that differ in their seed, done several at a time, and kept."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from examples.run_store import RunStore
from examples.studies.comparison import Claim, difference, standard_error
from examples.tables import markdown, mean_and_deviation


@dataclass(frozen=True)
class Measure:
    """Something that is read off the result of a run.

    Attributes:
        title: with its unit.
        of: reads it; less is better.
        digits: after the point, in tables.

    """

    title: str
    of: Callable[[Any], float]
    digits: int = 1


@dataclass(frozen=True)
class Experiment:
    """A kind of run.

    Attributes:
        module: does runs, see ``RunStore``.
        settings: makes settings of what is noted of them; they have a ``seed``.
        result: likewise a result.
        measures: columns of tables; rows are compared with the baseline by the first.
        told: names of the settings that a page tells.
        together: runs that one process does one after the other, where they are short.

    """

    module: str
    settings: Callable[..., Any]
    result: Callable[..., Any]
    measures: tuple[Measure, ...]
    told: tuple[str, ...]
    together: int = 1


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        labels: what stands in its first columns.
        run: its settings, with seed 0.
        paper: what the paper has there: relative reduction of its measure in %, or None.

    """

    labels: tuple[str, ...]
    run: Any
    paper: float | None = None


@dataclass(frozen=True)
class Found:
    """A row with what came of it, one value for each seed.

    Attributes:
        row: that was run.
        values: of every measure, by its title; the first one is what rows are compared by.
        against: that of the baseline, with the same seeds.
        digits: of every measure, after the point, where not 1.

    """

    row: Row
    values: dict[str, tuple[float, ...]]
    against: tuple[float, ...]
    digits: dict[str, int] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """Title of the measure that rows are compared by."""
        return next(iter(self.values))

    @property
    def reductions(self) -> tuple[float, ...]:
        """Relative reduction against the baseline with the same seed, in %; < 0 is worse."""
        return tuple(map(reduction, self.values[self.measure], self.against))


Rows = dict[tuple[str, ...], Found]
"""Rows of a table by their labels."""


@dataclass(frozen=True)
class Table:
    """One table of a paper.

    Attributes:
        title: with its number in the paper.
        columns: names of the labels.
        baseline: with which all rows are compared.
        rows: in order.
        claims: answers what the paper says of it, from its rows by their labels.
        notes: what else the page says of it.
        floor: lowest reduction in its picture, where a row that fails would hide the others.

    """

    title: str
    columns: tuple[str, ...]
    baseline: Any
    rows: Sequence[Row]
    claims: Callable[[Rows], list[Claim]]
    notes: str = ""
    floor: float | None = None


class Study:
    """Runs tables, some runs at a time, and knows what came of them.

    Args:
        folder: where runs are kept; a study goes on where it stopped.
        experiment: what its runs are.
        seeds: of each row.
        jobs: runs at a time.

    """

    def __init__(self, folder: Path, experiment: Experiment, *, seeds: int, jobs: int) -> None:
        self.experiment = experiment
        self._store: RunStore[Any, Any] = RunStore(
            folder,
            module=experiment.module,
            settings=experiment.settings,
            result=experiment.result,
        )
        self._seeds = range(seeds)
        self._jobs = jobs

    def train(self, tables: Iterable[Table]) -> None:
        """Do what has not been done, all rows with one seed before the next."""
        rows = [
            run for table in tables for run in [table.baseline, *(row.run for row in table.rows)]
        ]
        runs = [replace(run, seed=seed) for seed in self._seeds for run in rows]
        distinct = list({repr(run.portable_settings()): run for run in runs}.values())
        size = self.experiment.together
        parts = [distinct[start : start + size] for start in range(0, len(distinct), size)]
        with ThreadPoolExecutor(self._jobs) as pool, tqdm(total=len(distinct), unit="run") as bar:
            for done in pool.map(self._store.results, parts):
                bar.update(len(done))

    def found(self, table: Table) -> Rows:
        """The rows of a table that has been trained, by their labels."""
        return {row.labels: self._found(row, table.baseline) for row in table.rows}

    def baseline(self, table: Table) -> Found:
        """With which the rows of a table are compared."""
        return self._found(Row((), table.baseline), table.baseline)

    def _found(self, row: Row, baseline: Any) -> Found:
        own, base = self._of_seeds(row.run), self._of_seeds(baseline)
        measures = self.experiment.measures
        return Found(
            row,
            {each.title: tuple(map(each.of, own)) for each in measures},
            tuple(map(measures[0].of, base)),
            {each.title: each.digits for each in measures},
        )

    def _of_seeds(self, run: Any) -> list[Any]:
        return self._store.results([replace(run, seed=seed) for seed in self._seeds])


def fewer(
    rows: Rows, pair: tuple[tuple[str, ...], tuple[str, ...]], text: str, measure: str | None = None
) -> Claim:
    """Answer a claim that one row has less of a measure than another.

    Runs with the same seed are compared in pairs. The answer is open where the mean difference may
    be 0 by Student's t at 95%.

    Args:
        rows: of the table.
        pair: labels of the row that is said to have less, and of the other one.
        text: the claim.
        measure: its title; default: what rows are compared by.

    """
    title = measure or rows[pair[0]].measure
    first, second = (rows[labels].values[title] for labels in pair)
    return difference(text, first, second, title, rows[pair[0]].digits.get(title, 1))


def reduction(own: float, base: float) -> float:
    """Relative, in %; less than 0 if ``own`` is larger."""
    return 100.0 * (base - own) / base


def ends(rows: Rows) -> tuple[str, str]:
    """First and last of what stands in the last label."""
    labels = list(dict.fromkeys(last for *_, last in rows))
    return labels[0], labels[-1]


def cell(values: Sequence[float], digits: int) -> str:
    """A cell of a table: mean and spread; one value where all are the same."""
    return mean_and_deviation(values if len(set(values)) > 1 else values[:1], digits)


def lines(table: Table, found: Rows, measures: Sequence[Measure]) -> str:
    """A table in Markdown."""
    header = [*table.columns, *(each.title for each in measures), "reduction %", "paper's"]
    rows = [
        (
            *labels,
            *(cell(own.values[each.title], each.digits) for each in measures),
            f"{statistics.mean(own.reductions):+.1f} ± {standard_error(own.reductions):.1f}",
            "-" if own.row.paper is None else f"{own.row.paper:+.1f}",
        )
        for labels, own in found.items()
    ]
    return markdown(header, rows)


def write_csv(path: Path, table: Table, found: Rows) -> None:
    """A line for each row and seed."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        titles = next(iter(found.values())).values
        writer.writerow([*table.columns, "seed", *titles])
        for labels, own in found.items():
            for seed, values in enumerate(zip(*own.values.values(), strict=True)):
                writer.writerow([*labels, seed, *values])
