"""``lightning-hier report``: parses the arguments and writes the page."""

from __future__ import annotations

import os
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
    arguments = _parser().parse_args(args)
    if not arguments.runs:
        raise ValueError("name the directory of at least one run; see --help")
    runs = read_runs(arguments.runs, arguments.names)
    once = single_values(runs) if arguments.metric is None else []
    text = page(runs, choose_metrics(runs, arguments.metric), once)
    # Renamed when it is complete, so that a reader never opens a part of the page.
    unfinished = arguments.out.with_name(arguments.out.name + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, arguments.out)
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    print(f"wrote {arguments.out}: {count}, {len(text) / 1e3:.0f} kB")


def _parser() -> CommandParser:
    parser = CommandParser("report", _DESCRIPTION, _EPILOG)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="directory of a run, or one above")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="file to write (%(default)s)"
    )
    parser.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        help="metrics to plot (losses, error rates and similar ones)",
    )
    parser.add_argument("--names", nargs="+", help="names of the runs, in their order")
    return parser
