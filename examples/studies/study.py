"""Tables of a study. Each row has one run for each seed, and its results are stored in a file."""

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
    """A quantity that is computed from the result of a run.

    Attributes:
        title: name with its unit.
        value: function that computes it from a result. Smaller values are better.
        digits: number of decimals in tables.

    """

    title: str
    value: Callable[[Any], float]
    digits: int = 1


@dataclass(frozen=True)
class Experiment:
    """The kind of runs of a study.

    Attributes:
        module: module that does the runs, see ``RunStore``.
        settings: class of the settings of a run. They have a ``seed``.
        result: class of the result of a run.
        measures: columns of the tables. The first one is used to compare rows with the baseline.
        reported: names of the settings that the report lists.
        runs_per_process: number of runs that one process does one after the other, so that short
            runs do not start a process each.

    """

    module: str
    settings: Callable[..., Any]
    result: Callable[..., Any]
    measures: tuple[Measure, ...]
    reported: tuple[str, ...]
    runs_per_process: int = 1


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        labels: labels in the first columns.
        run: settings of the run, with seed 0.
        paper: relative reduction in the paper in %, or None.

    """

    labels: tuple[str, ...]
    run: Any
    paper: float | None = None


@dataclass(frozen=True)
class RowResult:
    """Results of a row, with one value for each seed.

    Attributes:
        row: the row.
        values: values of each measure by its title. Rows are compared by the first measure.
        baseline_values: values of the first measure in the baseline, with the same seeds.
        digits: number of decimals of each measure by its title (default: 1).

    """

    row: Row
    values: dict[str, tuple[float, ...]]
    baseline_values: tuple[float, ...]
    digits: dict[str, int] = field(default_factory=dict)

    @property
    def measure(self) -> str:
        """Title of the measure by which rows are compared."""
        return next(iter(self.values))

    @property
    def reductions(self) -> tuple[float, ...]:
        """Relative reduction in % from the baseline with the same seed. Negative is worse."""
        return tuple(map(reduction, self.values[self.measure], self.baseline_values))


Rows = dict[tuple[str, ...], RowResult]
"""Results of the rows of a table by their labels."""


@dataclass(frozen=True)
class Table:
    """One table of a study.

    Attributes:
        title: title, with the number of the table in the paper.
        columns: headers of the label columns.
        baseline: settings of the run with which all rows are compared.
        rows: rows in order.
        claims: function that evaluates the claims about the table from the results of its rows.
        notes: text below the table in the report.
        floor: lower limit of the reduction in the plot, if a failed row would hide the others.

    """

    title: str
    columns: tuple[str, ...]
    baseline: Any
    rows: Sequence[Row]
    claims: Callable[[Rows], list[Claim]]
    notes: str = ""
    floor: float | None = None

    def map(self, change: Callable[[Any], Any]) -> Table:
        """The same table with other settings of the baseline and of each run."""
        rows = [replace(row, run=change(row.run)) for row in self.rows]
        return replace(self, baseline=change(self.baseline), rows=rows)


class Study:
    """Runs the rows of tables in parallel, and returns their results.

    Args:
        folder: folder of the results. An interrupted study resumes from it.
        experiment: kind of the runs.
        seeds: number of seeds of each row.
        jobs: number of parallel runs.

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
        """Do the runs that have no results yet, for all rows with one seed before the next."""
        settings = [
            run for table in tables for run in [table.baseline, *(row.run for row in table.rows)]
        ]
        runs = [replace(run, seed=seed) for seed in self._seeds for run in settings]
        distinct = list({repr(run.portable_settings()): run for run in runs}.values())
        size = self.experiment.runs_per_process
        chunks = [distinct[start : start + size] for start in range(0, len(distinct), size)]
        with ThreadPoolExecutor(self._jobs) as pool, tqdm(total=len(distinct), unit="run") as bar:
            for results in pool.map(self._store.results, chunks):
                bar.update(len(results))

    def rows(self, table: Table) -> Rows:
        """Return the results of the rows of a trained table, by their labels."""
        return {row.labels: self._result(row, table.baseline) for row in table.rows}

    def baseline(self, table: Table) -> RowResult:
        """Return the results of the baseline of a trained table."""
        return self._result(Row((), table.baseline), table.baseline)

    def _result(self, row: Row, baseline: Any) -> RowResult:
        results, baseline_results = self._of_all_seeds(row.run), self._of_all_seeds(baseline)
        measures = self.experiment.measures
        return RowResult(
            row,
            {measure.title: tuple(map(measure.value, results)) for measure in measures},
            tuple(map(measures[0].value, baseline_results)),
            {measure.title: measure.digits for measure in measures},
        )

    def _of_all_seeds(self, run: Any) -> list[Any]:
        return self._store.results([replace(run, seed=seed) for seed in self._seeds])


def fewer(
    rows: Rows, pair: tuple[tuple[str, ...], tuple[str, ...]], text: str, measure: str | None = None
) -> Claim:
    """Evaluate the claim that a measure is smaller in one row than in another.

    Runs with the same seed are compared in pairs. The claim is undecided if the 95% confidence
    interval of the mean difference, by Student's t, contains 0.

    Args:
        rows: results of the rows of the table.
        pair: labels of the row with the smaller value according to the claim, and of the other.
        text: text of the claim.
        measure: title of the measure. None: the measure by which rows are compared.

    """
    title = measure or rows[pair[0]].measure
    first, second = (rows[labels].values[title] for labels in pair)
    return difference(text, first, second, title, rows[pair[0]].digits.get(title, 1))


def reduction(value: float, baseline: float) -> float:
    """Return the relative reduction from the baseline in %, negative if ``value`` is larger."""
    return 100.0 * (baseline - value) / baseline


def first_and_last(rows: Rows) -> tuple[str, str]:
    """Return the first and the last distinct label of the last label column."""
    labels = list(dict.fromkeys(last for *_, last in rows))
    return labels[0], labels[-1]


def cell(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation as text, or the value if all values are equal."""
    return mean_and_deviation(values if len(set(values)) > 1 else values[:1], digits)


def results_table(table: Table, rows: Rows, measures: Sequence[Measure]) -> str:
    """Return the results of a table in Markdown."""
    header = [*table.columns, *(measure.title for measure in measures), "reduction %", "paper's"]
    lines = [
        (
            *labels,
            *(cell(result.values[measure.title], measure.digits) for measure in measures),
            f"{statistics.mean(result.reductions):+.1f} ± {standard_error(result.reductions):.1f}",
            "-" if result.row.paper is None else f"{result.row.paper:+.1f}",
        )
        for labels, result in rows.items()
    ]
    return markdown(header, lines)


def write_csv(path: Path, table: Table, rows: Rows) -> None:
    """Write the results of a table as CSV, with one line for each row and seed."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        titles = next(iter(rows.values())).values
        writer.writerow([*table.columns, "seed", *titles])
        for labels, result in rows.items():
            for seed, values in enumerate(zip(*result.values.values(), strict=True)):
                writer.writerow([*labels, seed, *values])
