"""``lightning-hier report``: reads its arguments and writes the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lightning_hier.cli.parsing import CommandParser
from lightning_hier.cli.report.chosen_metrics import choose_metrics, single_values
from lightning_hier.cli.report.page import page
from lightning_hier.cli.report.reading import read_runs

_DESCRIPTION = """\
Make one HTML page that sets runs side by side: losses and errors over steps, over time
and over bytes, bytes of each tier, time waited, and a table of results and settings.
The page needs no network."""

_EPILOG = """\
A RUN is a folder that a CSVLogger (metrics.csv) or a TensorBoardLogger has written, such as
lightning_logs/version_0, or one above: then all runs in it are taken. What a run of another
strategy sends is not known; HierarchicalStrategy(group_size="world") is DDP, and counts."""


def run(args: list[str]) -> None:
    """Write the page, and tell where it is.

    Raises:
        ValueError: what the user asks for can't be done.
        OSError: a folder is not there, or a file can't be written.

    """
    asked = _parser().parse_args(args)
    if not asked.runs:
        raise ValueError("give the folder of at least one run; --help tells more")
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
    parser.add_argument("runs", metavar="RUN", nargs="*", help="folder of a run, or one above")
    parser.add_argument("--out", default="report.html", help="file to write (report.html)")
    parser.add_argument(
        "--metric",
        nargs="+",
        action="extend",
        help="plot these; otherwise losses, error rates and the like",
    )
    parser.add_argument("--names", nargs="+", help="of the runs, in their order")
    return parser
