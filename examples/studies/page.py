"""What a study leaves: a page, a CSV of every table, and a picture of every table."""

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
from examples.studies.study import Experiment, Found, Rows, Study, Table, cell, lines, write_csv
from examples.tables import markdown

HERE = "here"
"""Name of the line in a picture of a table with a single label."""


def options(description: str, name: str, *, data: str | None, jobs: int) -> argparse.Namespace:
    """The command line that all studies share.

    Args:
        description: of the study.
        name: of its module.
        data: what the folder of data holds, and what is taken without one; None: it takes none.
        jobs: runs at a time, unless told.

    """
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.set_defaults(name=name, data=None)
    if data is not None:
        parser.add_argument("--data", help=data)
    parser.add_argument("--out", type=Path, default=Path(f"outputs/studies/{name}"))
    parser.add_argument("--tables", nargs="+", help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=jobs, help="runs at a time")
    parser.add_argument("--quick", action="store_true", help="little of everything, one seed")
    told = parser.parse_args()
    told.seeds = 1 if told.quick else told.seeds
    return told


def write(
    experiment: Experiment, title: str, tables: dict[str, Table], told: argparse.Namespace
) -> None:
    """Train what is missing, then write all of it into the output folder.

    Raises:
        SystemExit: a table is asked for that the study does not have.

    """
    unknown = sorted(set(told.tables or ()) - set(tables))
    if unknown:
        sys.exit(f"--tables takes {', '.join(tables)}, got {', '.join(unknown)}")
    study = Study(told.out, experiment, seeds=told.seeds, jobs=told.jobs)
    chosen = {key: tables[key] for key in told.tables or tables}
    study.train(chosen.values())
    parts = [f"# {title}", _head(experiment, told)]
    for key, table in chosen.items():
        found = study.found(table)
        name = f"table_{key}"
        write_csv(told.out / f"{name}.csv", table, found)
        draw(told.out / f"{name}.png", table, found)
        parts += [f"## {table.title}", _settings(experiment, table, study.baseline(table))]
        parts += [lines(table, found, experiment.measures), f"![{table.title}]({name}.png)"]
        parts += [text for text in (table.notes, answers(table.claims(found))) if text]
    (told.out / "report.md").write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


def answers(claims: Sequence[Claim]) -> str:
    """What is said, and whether it holds here."""
    rows = [(claim.text, f"**{claim.verdict}**", claim.because) for claim in claims]
    return markdown(("said", "here", "because"), rows)


def draw(path: Path, table: Table, found: Rows) -> None:
    """Reductions over the last label, a line for each of the others; the paper's beside them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, own) in enumerate(_series(found).items()):
        color, papers_label = f"C{number}", "the paper" if name == HERE else f"{name}, paper"
        values = [statistics.mean(row.reductions) for row in own.values()]
        around = [standard_error(row.reductions) for row in own.values()]
        axes.errorbar(list(own), values, around, marker="o", capsize=3, color=color, label=name)
        papers = [row.row.paper for row in own.values() if row.row.paper is not None]
        if len(papers) == len(own):
            axes.plot(list(own), papers, ":", color=color, label=papers_label)
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    measure = next(iter(found.values())).measure
    axes.set(xlabel=table.columns[-1], ylabel=f"reduction of {measure}", title=table.title)
    axes.set_ylim(bottom=table.floor)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _series(found: Rows) -> dict[str, dict[str, Found]]:
    """Lines of a picture: by all labels but the last, over the last."""
    series: dict[str, dict[str, Found]] = {}
    for labels, row in found.items():
        series.setdefault(", ".join(labels[:-1]) or HERE, {})[labels[-1]] = row
    return series


def _head(experiment: Experiment, told: argparse.Namespace) -> str:
    data = " --data FOLDER" if told.data else ""
    quick = " --quick" if told.quick else ""
    return (
        f"- Command: `python -m examples.studies.{told.name}{data}{quick}`\n"
        f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}; {platform.machine()} CPU.\n"
        f"- Seeds: {told.seeds}, mean ± standard deviation. Reduction: of "
        f"{experiment.measures[0].title} against the baseline with the same seed, mean ± standard "
        "error; less than 0 is worse. A claim is answered by the differences between runs of the "
        "same seed: their mean with its 95% interval by Student's t; it is left open where the "
        "interval contains 0."
    )


def _settings(experiment: Experiment, table: Table, base: Found) -> str:
    cells = {each: cell(base.values[each.title], each.digits) for each in experiment.measures}
    there = ", ".join(f"{text} {measure.title}" for measure, text in cells.items())
    return (
        f"Settings: {', '.join(_setting(key, table) for key in experiment.told)}. "
        f"Baseline: {there}."
    )


def _setting(key: str, table: Table) -> str:
    """What the rows of a table have, and the baseline where it has another value."""
    base = str(getattr(table.baseline, key))
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in table.rows:
        rows.setdefault(str(getattr(row.run, key)), []).append(row.labels)
    if list(rows) == [base]:
        return f"{key} {base}"
    if len(rows) == 1:
        (own,) = rows
        return f"{key} {own} (baseline {base})"
    return f"{key} {', '.join(_with_names(rows))} (baseline {base})"


def _with_names(rows: dict[str, list[tuple[str, ...]]]) -> list[str]:
    """Every value with the rows that have it, by the first label that tells them apart."""
    for of_column in range(len(next(iter(rows.values()))[0])):
        names = [list(dict.fromkeys(labels[of_column] for labels in own)) for own in rows.values()]
        if names == [[value] for value in rows]:
            return ["as in the rows"]
        if len({name for own in names for name in own}) == sum(map(len, names)):
            return [f"{value} ({', '.join(own)})" for value, own in zip(rows, names, strict=True)]
    return [f"{value} ({len(own)} rows)" for value, own in rows.items()]
