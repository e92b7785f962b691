"""`lightning-hier report`: reads runs, chooses the metrics to plot, and writes the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.cli.report.page import page
from lightning_hier.cli.report.reading import read_runs
from lightning_hier.cli.report.runs import Run

_DESCRIPTION = """\
Create one HTML page that compares runs: losses and errors over steps, over time and
over bytes, bytes of each tier, waiting time, and tables of results and settings.
The page works offline."""

_EPILOG = """\
A RUN is a directory of a CSVLogger (metrics.csv) or of a TensorBoardLogger, such as
lightning_logs/version_0, or a directory above it, which selects all runs in it. Other
strategies do not count bytes. HierarchicalStrategy(group_size="world") is DDP that does."""

_MOST = 6
# Parts of names that usually denote the quality of a model.
_TELLING = re.compile(
    r"loss|err|acc|perplexity|ppl|(^|[/_])(wer|cer|per|f1|auc|bleu|mse|nll)($|[/_])"
)
# Lightning creates two names for log(on_step=True, on_epoch=True). One of them is sufficient.
_TWIN = "_step"


def run(args: list[str]) -> None:
    """Write the page and print its path.

    Raises:
        ValueError: an argument is invalid.
        OSError: a directory does not exist, or a file cannot be written.

    """
    arguments = _parser().parse_args(args)
    if not arguments.runs:
        raise ValueError("name the directory of at least one run; see --help")
    runs = read_runs(arguments.runs, arguments.names)
    plotted, only_in_table = choose_metrics(runs, arguments.metric)
    text = page(runs, plotted, only_in_table)
    arguments.out.write_text(text, encoding="utf-8")
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    print(f"wrote {arguments.out}: {count}, {len(text) / 1e3:.0f} kB")


def _parser() -> CommandParser:
    parser = CommandParser("report", _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="*", help="directory of a run, or one above")
    add("--out", type=Path, default=Path("report.html"), help="file to write (%(default)s)")
    metrics = "metrics to plot (losses, error rates and similar ones)"
    add("--metric", nargs="+", action="extend", help=metrics)
    add("--names", nargs="+", help="names of the runs, in their order")
    return parser


def choose_metrics(runs: Sequence[Run], asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Names of the metrics to plot, and of those that appear only in the table.

    Args:
        runs: compared runs.
        asked: metrics requested by the user. None: losses, error rates and similar metrics, sorted
            by the number of runs that have them. Those that were logged once, as by
            ``trainer.test``, appear only in the table.

    Raises:
        ValueError: no run has a requested metric. The error lists the available ones.

    """
    logged = {name for run in runs for name in run.metrics}
    if asked is not None:
        unknown = [name for name in asked if name not in logged]
        if unknown:
            listed = ", ".join(sorted(logged)) or "none"
            raise ValueError(
                f"no run has logged {', '.join(map(repr, unknown))}; there is {listed}"
            )
        return list(dict.fromkeys(asked)), []
    twins = {name for name in logged if name.removesuffix("_epoch") + _TWIN in logged}
    curves = {name for name in logged if _is_curve(runs, name)}
    telling = {name for name in logged if _TELLING.search(name.lower())}
    plotted = curves - twins
    return _first(runs, plotted & telling or plotted), _first(runs, telling - curves)


def _first(runs: Sequence[Run], names: set[str]) -> list[str]:
    return sorted(names, key=lambda name: _rank(runs, name))[:_MOST]


def _is_curve(runs: Sequence[Run], name: str) -> bool:
    return any(len(run.series[name].steps) > 1 for run in runs if name in run.series)


def _rank(runs: Sequence[Run], name: str) -> tuple[int, bool, bool, str]:
    # Metrics that most runs have come first, because the page compares runs.
    absent = sum(name not in run.series for run in runs)
    return absent, "loss" not in name.lower(), "train" not in name.lower(), name
