"""The page of the documentation: remarks by hand, between them tables of the results beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.model_parallel.table import tables
from benchmarks.performance.page import renewed
from benchmarks.performance.results import REPORTED as PERFORMANCE
from benchmarks.performance.store import Store

REPORTED = PERFORMANCE.with_name("model_parallel")
"""Folder of the published results."""

PAGE = REPORTED.with_suffix(".md")
RESULTS = "results.jsonl"


def publish(out: Path) -> None:
    """Copy the results of an output folder beside the page, and renew its tables."""
    REPORTED.mkdir(exist_ok=True)
    shutil.copyfile(out / RESULTS, REPORTED / RESULTS)
    PAGE.write_text(renewed(PAGE.read_text(), measured()))
    print(f"wrote {PAGE}")


def measured() -> dict[str, str]:
    """All tables of the published results, by the names under which the page has them."""
    return tables(Store(REPORTED / RESULTS).lines())
