"""Runs of a study, kept in a file, so that it goes on where it was stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch.distributed as dist

from examples.torchrun import run_module


class Run(Protocol):
    """Settings of a run: a dataclass that JSON can say."""

    @property
    def ranks(self) -> int:
        """Processes that the run takes."""

    def portable_settings(self) -> dict[str, Any]:
        """The settings as they are noted: without the folders of one machine."""


class Outcome(Protocol):
    """Result of a run: a dataclass that JSON can say."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of the run, see ``Run.portable_settings``."""


SettingsType = TypeVar("SettingsType", bound=Run)
ResultType = TypeVar("ResultType", bound=Outcome)


class RunStore(Generic[SettingsType, ResultType]):
    """Results by settings.

    Args:
        folder: where ``runs.jsonl`` is kept.
        module: what does the runs. Its argument is a JSON object: ``runs``, a list of settings that
            all take the same number of ranks, and ``results``, a file to which rank 0 appends one
            line of JSON for each run.
        settings: makes settings of what is noted of them.
        result: likewise a result.
        launch: starts the module on its ranks, as ``run_module`` does.

    """

    def __init__(
        self,
        folder: Path,
        *,
        module: str,
        settings: Callable[..., SettingsType],
        result: Callable[..., ResultType],
        launch: Callable[..., None] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "runs.jsonl"
        self._module = module
        self._settings = settings
        self._result = result
        self._launch = run_module if launch is None else launch

    def results(self, runs: Sequence[SettingsType]) -> list[ResultType]:
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

    def _run(self, job: list[SettingsType], ranks: int) -> None:
        runs = [asdict(settings) for settings in job]  # type: ignore[call-overload]
        arguments = {"runs": runs, "results": str(self._file)}
        self._launch(self._module, json.dumps(arguments), ranks=ranks)

    def _read(self) -> dict[str, ResultType]:
        return {_key(self._settings(**result.settings)): result for result in self._lines()}

    def _lines(self) -> Iterator[ResultType]:
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                yield self._result(**json.loads(line))


def run_job(
    run: Callable[[SettingsType], ResultType], settings: Callable[..., SettingsType]
) -> None:
    """Do what the argument of a module says that a ``RunStore`` starts. Every rank must call it.

    Args:
        run: does one run, on all ranks.
        settings: makes settings of what the argument holds of them.

    """
    job = json.loads(sys.argv[1])
    for noted in job["runs"]:
        result = run(settings(**noted))
        if not dist.is_initialized() or dist.get_rank() == 0:
            with Path(job["results"]).open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")  # type: ignore[call-overload]


def portable(corpus_args: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a corpus as they are noted: of its path the name, not where it lies."""
    path = corpus_args.get("path")
    return corpus_args if path is None else {**corpus_args, "path": Path(path).name}


def _key(settings: Run) -> str:
    return json.dumps(settings.portable_settings(), sort_keys=True)
