"""The runs of the text line example's demo and study, kept in a file."""

from __future__ import annotations

from pathlib import Path

from examples.ocr.run_systems import Result, Settings
from examples.run_store import RunStore as AnyRunStore


class RunStore(AnyRunStore[Settings, Result]):
    """Results by settings.

    Args:
        folder: where ``runs.jsonl`` is kept.

    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, module="examples.ocr.run_systems", settings=Settings, result=Result
        )
