"""``lightning-hier report``: parses the arguments and writes the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.cli.report.chosen_metrics import choose_metrics, single_values
from lightning_hier.cli.report.page import page
from lightning_hier.cli.report.reading import read_runs

_DESCRIPTION = """\
Create one HTML page that compares runs: losses and errors over steps, over time and
over bytes, bytes of each tier, waiting time, and tables of results and settings.
The page works offline."""

_EPILOG = """\
A RUN is a directory of a CSVLogger (metrics.csv) or of a TensorBoardLogger, such as
lightning_logs/version_0, or a directory above it, which selects all runs in it. Other
strategies do not count bytes. HierarchicalStrategy(group_size="world") is DDP that does."""


def run(args: list[str]) -> None:
    """Write the page and print its path.

    Raises:
        ValueError: an argument is invalid.
        OSError: a directory does not exist, or a file cannot be written.

    """
    asked = _parser().parse_args(args)
    if not asked.runs:
        raise ValueError("name the directory of at least one run; see --help")
    _write_page(asked.runs, Path(asked.out), asked.metric, asked.names)


def _write_page(
    paths: Sequence[str], out: Path, metrics: Sequence[str] | None, names: Sequence[str] | None
) -> None:
    runs = read_runs(paths, names)
    once = single_values(runs) if metrics is None else []
    text = page(runs, choose_metrics(runs, metrics), once)
    unfinished = out.with_name(out.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, out)
    print(f"wrote {out}: {len(runs)} run{'s' * (len(runs) > 1)}, {len(text) / 1e3:.0f} kB")


def _parser() -> CommandParser:
    parser = CommandParser("report", _DESCRIPTION, _EPILOG)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="directory of a run, or one above")
    parser.add_argument("--out", default="report.html", help="file to write (report.html)")
    parser.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        help="metrics to plot (losses, error rates and similar ones)",
    )
    parser.add_argument("--names", nargs="+", help="names of the runs, in their order")
    return parser
