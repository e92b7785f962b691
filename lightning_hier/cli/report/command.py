"""``lightning-hier report``: parses the arguments and writes the page."""

from __future__ import annotations

from pathlib import Path

from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.cli.report.chosen_metrics import choose_metrics
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
