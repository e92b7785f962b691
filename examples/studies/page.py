"""What a study leaves: a page, a CSV of every table, and a picture of every table."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import lightning
import torch

from examples.studies.speech import SpeechRun
from examples.studies.study import Claim, Found, Rows, Study, Table, lines, write_csv
from examples.tables import markdown, spread

_SETTINGS = (
    "model", "model_args", "pretraining_epochs", "epochs", "decay_epochs", "learning_rate",
    "batch_frames", "block_size", "density",
)  # fmt: skip


def options(description: str, name: str) -> argparse.Namespace:
    """The command line that all studies share."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("--data", help="folder an4_mfcc; default: speech that is synthesised")
    parser.add_argument("--out", type=Path, default=Path(f"outputs/studies/{name}"))
    parser.add_argument("--tables", nargs="+", help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--quick", action="store_true", help="few workers, one epoch, one seed")
    return parser.parse_args()


def with_data(run: SpeechRun, told: argparse.Namespace) -> SpeechRun:
    """A run on the data that the command line names; the quick form takes little of them."""
    run = replace(run, folder=str(told.out))
    if told.quick:
        run = replace(run, pretraining_epochs=1, epochs=1, decay_epochs=0)
        return replace(run, corpus_args={"sentences": 60})
    if told.data:
        return replace(run, corpus="an4", corpus_args={"path": told.data, "delta_orders": 2})
    return run


def write(
    study: Study, title: str, name: str, tables: dict[str, Table], told: argparse.Namespace
) -> None:
    """Train what is missing, then write all of it into the output folder."""
    chosen = {key: tables[key] for key in told.tables or tables}
    study.train(chosen.values())
    told.out.mkdir(parents=True, exist_ok=True)
    parts = [f"# {title}", _head(name, told)]
    for key, table in chosen.items():
        found = study.found(table)
        write_csv(told.out / f"table_{key}.csv", table, found)
        draw(told.out / f"table_{key}.png", table, found)
        parts += [f"## {table.title}", _settings(table, study.alone(table)), lines(table, found)]
        parts += [f"![{table.title}](table_{key}.png)", answers(table.claims(found))]
    (told.out / "report.md").write_text("\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


def answers(claims: Sequence[Claim]) -> str:
    """What is said, and whether it holds here."""
    rows = [(claim.text, f"**{claim.verdict}**", claim.because) for claim in claims]
    return markdown(("said", "here", "because"), rows)


def draw(path: Path, table: Table, found: Rows) -> None:
    """Reduction of word errors over the last label, a line for each of the others; the paper's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, own) in enumerate(_series(found).items()):
        color = f"C{number}"
        values = [row.reduction for row in own.values()]
        around = [row.uncertainty for row in own.values()]
        axes.errorbar(list(own), values, around, marker="o", capsize=3, color=color, label=name)
        papers = [row.row.paper for row in own.values() if row.row.paper is not None]
        if len(papers) == len(own):
            axes.plot(list(own), papers, ":", color=color, label=f"{name}, paper")
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    axes.set(xlabel=table.columns[-1], ylabel="reduction of word errors, %", title=table.title)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def _series(found: Rows) -> dict[str, dict[str, Found]]:
    """Lines of a picture: by all labels but the last, over the last."""
    series: dict[str, dict[str, Found]] = {}
    for labels, row in found.items():
        series.setdefault(", ".join(labels[:-1]) or "here", {})[labels[-1]] = row
    return series


def _head(name: str, told: argparse.Namespace) -> str:
    data = " --data FOLDER/an4_mfcc" if told.data else ""
    quick = " --quick" if told.quick else ""
    return (
        f"- Command: `python -m examples.studies.{name}{data}{quick}`\n"
        f"- Versions: Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}; {platform.machine()} CPU; one rank plays all workers.\n"
        f"- {1 if told.quick else told.seeds} seeds: mean ± standard deviation. Reduction: of the "
        "mean word errors against one worker, ± its standard error; less than 0 is worse."
    )


def _settings(table: Table, one: Found) -> str:
    run = asdict(table.baseline)
    return (
        f"Settings: {', '.join(f'{key} {run[key]}' for key in _SETTINGS)}. One worker: "
        f"{spread(one.frame_errors)}% frame errors, {spread(one.word_errors)}% word errors, "
        f"{one.steps} steps."
    )
