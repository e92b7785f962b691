"""Command line and output of a study: a report, and a CSV file and a plot of every table."""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import lightning
import torch

from examples.studies.comparison import Claim, standard_error
from examples.studies.study import (
    Experiment,
    RowResult,
    Rows,
    Study,
    Table,
    cell,
    results_table,
    write_csv,
)
from examples.tables import markdown

HERE = "here"
"""Label of the line in the plot of a table with a single label column."""


def parse_options(
    description: str, name: str, *, data: str | None, jobs: int
) -> argparse.Namespace:
    """Parse the command line, whose options are the same for all studies.

    Args:
        description: description of the study.
        name: name of its module.
        data: help text of ``--data``. None: the study has no such option.
        jobs: default number of parallel runs.

    """
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.set_defaults(name=name, data=None)
    if data is not None:
        parser.add_argument("--data", help=data)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(f"outputs/studies/{name}"),
        help="output folder (default: %(default)s)",
    )
    parser.add_argument("--tables", nargs="+", help="keys of the tables (default: all)")
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=jobs, help="number of parallel runs (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="very short runs with one seed")
    options = parser.parse_args()
    options.seeds = 1 if options.quick else options.seeds
    return options


def write(
    experiment: Experiment, title: str, tables: dict[str, Table], options: argparse.Namespace
) -> None:
    """Do the missing runs, then write the report, CSV files and plots into the output folder.

    Raises:
        SystemExit: ``--tables`` names a table that the study does not have.

    """
    unknown = sorted(set(options.tables or ()) - set(tables))
    if unknown:
        sys.exit(f"--tables takes {', '.join(tables)}, got {', '.join(unknown)}")
    study = Study(options.out, experiment, seeds=options.seeds, jobs=options.jobs)
    selected = {key: tables[key] for key in options.tables or tables}
    study.train(selected.values())
    sections = [f"# {title}", _header(experiment, options)]
    for key, table in selected.items():
        rows = study.rows(table)
        name = f"table_{key}"
        write_csv(options.out / f"{name}.csv", table, rows)
        draw(options.out / f"{name}.png", table, rows)
        sections += [f"## {table.title}", _settings(experiment, table, study.baseline(table))]
        sections += [results_table(table, rows, experiment.measures)]
        sections += [f"![{table.title}]({name}.png)"]
        sections += [text for text in (table.notes, claims_table(table.claims(rows))) if text]
    (options.out / "report.md").write_text("\n\n".join(sections) + "\n")
    print("\n\n".join(sections))


def claims_table(claims: Sequence[Claim]) -> str:
    """Return the claims with their verdicts in Markdown."""
    rows = [(claim.text, f"**{claim.verdict}**", claim.because) for claim in claims]
    return markdown(("claim", "result", "reason"), rows)


def draw(path: Path, table: Table, rows: Rows) -> None:
    """Plot the reductions, and those of the paper, over the last label column.

    There is a line for each combination of the other labels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (name, results) in enumerate(_series(rows).items()):
        color, paper_label = f"C{index}", "the paper" if name == HERE else f"{name}, paper"
        means = [statistics.mean(result.reductions) for result in results.values()]
        errors = [standard_error(result.reductions) for result in results.values()]
        axes.errorbar(list(results), means, errors, marker="o", capsize=3, color=color, label=name)
        paper = [result.row.paper for result in results.values() if result.row.paper is not None]
        if len(paper) == len(results):
            axes.plot(list(results), paper, ":", color=color, label=paper_label)
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    measure = next(iter(rows.values())).measure
    axes.set(xlabel=table.columns[-1], ylabel=f"reduction of {measure}", title=table.title)
    axes.set_ylim(bottom=table.floor)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _series(rows: Rows) -> dict[str, dict[str, RowResult]]:
    """Return the lines of a plot: results by the last label, for each of the other labels."""
    series: dict[str, dict[str, RowResult]] = {}
    for labels, result in rows.items():
        series.setdefault(", ".join(labels[:-1]) or HERE, {})[labels[-1]] = result
    return series


def _header(experiment: Experiment, options: argparse.Namespace) -> str:
    data = " --data FOLDER" if options.data else ""
    quick = " --quick" if options.quick else ""
    return (
        f"- Command: `python -m examples.studies.{options.name}{data}{quick}`\n"
        f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}; {platform.machine()} CPU.\n"
        f"- Seeds: {options.seeds}, mean ± standard deviation. Reduction: relative reduction of "
        f"{experiment.measures[0].title} from the baseline with the same seed, mean ± standard "
        "error; negative values are worse. A claim is evaluated from the differences between runs "
        "with the same seed: their mean and its 95% confidence interval by Student's t. It is "
        "undecided if the interval contains 0."
    )


def _settings(experiment: Experiment, table: Table, baseline: RowResult) -> str:
    baseline_cells = ", ".join(
        f"{cell(baseline.values[measure.title], measure.digits)} {measure.title}"
        for measure in experiment.measures
    )
    return (
        f"Settings: {', '.join(_setting(key, table) for key in experiment.reported)}. "
        f"Baseline: {baseline_cells}."
    )


def _setting(key: str, table: Table) -> str:
    """Return the values of a setting in the rows, and in the baseline if it differs."""
    baseline = str(getattr(table.baseline, key))
    labels_by_value: dict[str, list[tuple[str, ...]]] = {}
    for row in table.rows:
        labels_by_value.setdefault(str(getattr(row.run, key)), []).append(row.labels)
    if list(labels_by_value) == [baseline]:
        return f"{key} {baseline}"
    if len(labels_by_value) == 1:
        (value,) = labels_by_value
        return f"{key} {value} (baseline {baseline})"
    return f"{key} {', '.join(_values_with_rows(labels_by_value))} (baseline {baseline})"


def _values_with_rows(labels_by_value: dict[str, list[tuple[str, ...]]]) -> list[str]:
    """Return each value with the names of its rows, by the first label that distinguishes them."""
    for column in range(len(next(iter(labels_by_value.values()))[0])):
        names = [
            list(dict.fromkeys(row_labels[column] for row_labels in labels))
            for labels in labels_by_value.values()
        ]
        if names == [[value] for value in labels_by_value]:
            return ["as in the rows"]
        if len({name for of_value in names for name in of_value}) == sum(map(len, names)):
            return [
                f"{value} ({', '.join(of_value)})"
                for value, of_value in zip(labels_by_value, names, strict=True)
            ]
    return [f"{value} ({len(labels)} rows)" for value, labels in labels_by_value.items()]
