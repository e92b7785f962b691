"""Finds runs in directories, and reads the files of CSVLogger and TensorBoardLogger."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_hier.callbacks.metrics import SETTINGS_FILE
from lightning_hier.cli.report.runs import EMPTY, Run, Series, distinct_names

_CSV, _EVENTS = "metrics.csv", "events.out.tfevents.*"


def read_runs(paths: Sequence[str], names: Sequence[str] | None) -> list[Run]:
    """Read all runs.

    Args:
        paths: directories of runs, or directories that contain runs.
        names: names of the runs, in their order. None: the parts in which their paths differ.

    Raises:
        OSError: a directory does not exist or contains no run.
        ValueError: a file cannot be read, or the numbers of names and runs differ.

    """
    folders = [folder for path in paths for folder in _folders(Path(path))]
    folders = list(dict.fromkeys(folders))
    if names is not None and len(names) != len(folders):
        listed = ", ".join(map(str, folders))
        raise ValueError(
            f"--names must name each run once: {len(names)} names for {len(folders)} runs "
            f"({listed})"
        )
    named = zip(names or distinct_names(folders), folders, strict=True)
    return [_read(name, folder) for name, folder in named]


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise FileNotFoundError(
            f"{path} is not a directory: name the directory of a logger, or one above"
        )
    folders = {file.parent for pattern in (_CSV, _EVENTS) for file in path.rglob(pattern)}
    if not folders:
        raise FileNotFoundError(
            f"no {_CSV} of a CSVLogger and no {_EVENTS} of a TensorBoardLogger in {path}: name the "
            "directory that contains them, such as lightning_logs/version_0, or one above"
        )
    return sorted(folders)


def _read(name: str, folder: Path) -> Run:
    # A directory may have files of both loggers, with the same values.
    if (folder / _CSV).is_file():
        series, wall = _read_csv(folder / _CSV), EMPTY
    else:
        series, wall = _read_events(folder)
    if not series:
        raise ValueError(f"{folder} contains no logged values")
    return Run(
        name=name,
        folder=folder,
        series=series,
        settings=_read_settings(folder / SETTINGS_FILE),
        hyperparameters=_read_hyperparameters(folder / "hparams.yaml"),
        wall=wall,
    )


def _read_csv(file: Path) -> dict[str, Series]:
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with file.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                step = float(row["step"])
                for name, value in row.items():
                    if name != "step" and value:
                        points[name].append((step, float(value)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{file}, line {number}: not in the format of CSVLogger ({error!r})"
                ) from error
    return {name: Series.of(values) for name, values in points.items()}


def _read_events(folder: Path) -> tuple[dict[str, Series], Series]:
    """All scalars, and the times at which they were logged, in seconds."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise ValueError(
            f"{folder} was written by TensorBoardLogger: pip install tensorboard to read it"
        ) from error
    # 0 loads all values. By default, TensorBoard keeps a sample of 10,000.
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    by_tag = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    series = {tag: Series.of((e.step, e.value) for e in scalars) for tag, scalars in by_tag.items()}
    # Values that are logged after training have a separate step.
    times = sorted((e.step, e.wall_time) for scalars in by_tag.values() for e in scalars)
    begun = min((time for _, time in times), default=0.0)
    # Reversed, because Series.of keeps the last time of a step: so it is the earliest.
    return series, Series.of((step, time - begun) for step, time in reversed(times))


def _read_settings(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text()))
    except ValueError as error:
        raise ValueError(f"{file}: not in the format of a strategy ({error})") from error


# hparams.yaml has tags for arguments of other types. Creating such objects could run code.
class _PlainLoader(yaml.SafeLoader):
    """Loads YAML without creating Python objects, which are replaced by their names."""


_PlainLoader.add_multi_constructor("", lambda loader, tag, node: tag.rsplit(":", 1)[-1])


def _read_hyperparameters(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        read = yaml.load(file.read_text(), Loader=_PlainLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: not in the format of a logger ({error})") from error
    return dict(read) if isinstance(read, dict) else {}
