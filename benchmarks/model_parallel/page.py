"""Page of the documentation with tables generated from the results beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.model_parallel.table import tables
from benchmarks.performance.page import replace_tables
from benchmarks.performance.results import REPORTED as PERFORMANCE
from benchmarks.performance.store import Store

REPORTED = PERFORMANCE.with_name("model_parallel")
"""Folder of the published results."""

PAGE = REPORTED.with_suffix(".md")
RESULTS = "results.jsonl"


def publish(out: Path) -> None:
    """Copy the results of an output folder beside the page, and replace its tables."""
    REPORTED.mkdir(exist_ok=True)
    shutil.copyfile(out / RESULTS, REPORTED / RESULTS)
    PAGE.write_text(replace_tables(PAGE.read_text(), measured_tables()))
    print(f"wrote {PAGE}")


def measured_tables() -> dict[str, str]:
    """Return the tables of the published results, by their names on the page."""
    return tables(Store(REPORTED / RESULTS).lines())
