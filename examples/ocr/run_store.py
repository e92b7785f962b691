"""A file with the results of the text line example's demo and study."""

from __future__ import annotations

from pathlib import Path

from examples.ocr.run_systems import Result, Settings
from examples.run_store import RunStore as AnyRunStore


class RunStore(AnyRunStore[Settings, Result]):
    """Stores the results of runs, and starts runs without results.

    Args:
        folder: directory of ``runs.jsonl``.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, module="examples.ocr.run_systems", settings=Settings, result=Result
        )
