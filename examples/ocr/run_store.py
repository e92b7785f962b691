"""Runs of a study, kept in a file, so that it goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from examples.ocr.run_systems import Result, Settings
from examples.torchrun import run_module


class RunStore:
    """Results by settings.

    Args:
        folder: where ``runs.jsonl`` is kept.

    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "runs.jsonl"

    def results(self, runs: Sequence[Settings]) -> list[Result]:
        """Results of the runs, in their order; those that are not in the file are run first.

        Raises:
            RuntimeError: a run failed.

        """
        done = self._read()
        missing = [settings for settings in runs if _key(settings) not in done]
        by_ranks = sorted(missing, key=lambda settings: settings.ranks)
        for ranks, job in groupby(by_ranks, key=lambda settings: settings.ranks):
            self._run(list(job), ranks)
        done = self._read()
        return [done[_key(settings)] for settings in runs]

    def _run(self, job: list[Settings], ranks: int) -> None:
        arguments = {"runs": [asdict(settings) for settings in job], "results": str(self._file)}
        run_module("examples.ocr.run_systems", json.dumps(arguments), ranks=ranks)

    def _read(self) -> dict[str, Result]:
        return {_key(Settings(**result.settings)): result for result in self._lines()}

    def _lines(self) -> Iterator[Result]:
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                yield Result(**json.loads(line))


def _key(settings: Settings) -> str:
    return json.dumps(settings.anywhere(), sort_keys=True)
