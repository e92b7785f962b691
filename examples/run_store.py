"""File with the finished runs of a study, so that an interrupted study can be continued."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch.distributed as dist

from examples.ranks import run_module


class Run(Protocol):
    """Interface of settings of a run, which are dataclasses of JSON values."""

    @property
    def ranks(self) -> int:
        """Number of processes of the run."""

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings without the folders of this machine, as results contain them."""


class Outcome(Protocol):
    """Interface of results of a run, which are dataclasses of JSON values."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run, as of ``Run.portable_settings``."""


SettingsType = TypeVar("SettingsType", bound=Run)
ResultType = TypeVar("ResultType", bound=Outcome)


class RunStore(Generic[SettingsType, ResultType]):
    """Results by settings, in a file.

    Args:
        folder: folder of the file ``runs.jsonl``.
        module: module that executes runs, with :func:`run_job`. Its argument is a JSON object with
            ``runs``, a list of settings with the same number of ranks, and ``results``, a file to
            which rank 0 appends a line of JSON for each run.
        settings: class of the settings.
        result: class of the results.

    """

    def __init__(
        self,
        folder: Path,
        *,
        module: str,
        settings: Callable[..., SettingsType],
        result: Callable[..., ResultType],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "runs.jsonl"
        self._module = module
        self._settings = settings
        self._result = result

    def results(self, runs: Sequence[SettingsType]) -> list[ResultType]:
        """Return the results of runs, in order. Runs that are not in the file are executed.

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
        run_module(self._module, json.dumps(arguments), ranks=ranks)

    def _read(self) -> dict[str, ResultType]:
        return {_key(self._settings(**result.settings)): result for result in self._lines()}

    def _lines(self) -> Iterator[ResultType]:
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                yield self._result(**json.loads(line))


def run_job(
    run: Callable[[SettingsType], ResultType], settings: Callable[..., SettingsType]
) -> None:
    """Execute the runs of a module that a :class:`RunStore` starts. Every rank must call it.

    Args:
        run: function that executes a run on all ranks.
        settings: class of the settings.

    """
    job = json.loads(sys.argv[1])
    for values in job["runs"]:
        result = run(settings(**values))
        if not dist.is_initialized() or dist.get_rank() == 0:
            with Path(job["results"]).open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")  # type: ignore[call-overload]


def portable(corpus_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a corpus with the name of its path, without the folder."""
    path = corpus_args.get("path")
    return corpus_args if path is None else {**corpus_args, "path": Path(path).name}


def _key(settings: Run) -> str:
    return json.dumps(settings.portable_settings(), sort_keys=True)
