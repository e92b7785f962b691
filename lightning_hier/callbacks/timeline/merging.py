"""One file of the timelines of all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

MERGED = "timeline.json"


def merge_timelines(folder: str | Path, out: str | Path | None = None) -> Path:
    """Put the events of all ranks' files into one file.

    Files of a run that was killed are read up to their last whole event. A file of a timeline that
    spans hosts is made where the files of all hosts have been copied into one folder.

    Args:
        folder: that a :class:`~lightning_hier.callbacks.timeline.Timeline` has written:
            ``.../20261122-073000-123``.
        out: what to write; None: ``timeline.json`` in the folder.

    Returns:
        What was written.

    Raises:
        OSError: the folder has no such files, or the file can't be written.

    """
    files = sorted(Path(folder).glob("rank_*.json"))
    if not files:
        raise FileNotFoundError(
            f"no rank_*.json in {folder}: give the folder of one fit, which lies in the path of "
            "the Timeline callback and is named by the time of its start"
        )
    target = Path(out) if out is not None else Path(folder) / MERGED
    unfinished = target.with_name(target.name + ".part")
    with unfinished.open("w") as merged:
        separator = "[\n"
        for file in files:
            for event in read_events(file):
                merged.write(separator + event)
                separator = ",\n"
        merged.write("\n]\n" if separator != "[\n" else "[]\n")
    os.replace(unfinished, target)
    return target


def read_events(file: Path) -> Iterator[str]:
    """The events of one rank's file, each as its JSON, up to the last whole one."""
    with file.open() as lines:
        for line in lines:
            text = line.strip().rstrip(",")
            if text in ("", "[", "]"):
                continue
            try:
                json.loads(text)
            except json.JSONDecodeError:
                return  # cut off as it was written
            yield text
