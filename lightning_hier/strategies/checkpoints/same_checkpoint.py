"""All ranks resume from one checkpoint, or one error names those that do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lightning_hier.comm.agreement import gather_json
from lightning_hier.strategies.checkpoints.rank_files import section_of

_WAY_OUT = (
    "Every rank must read the same checkpoint: save into a folder that all hosts share (or a URL), "
    "or copy the checkpoint, with its folder NAME.ckpt.ranks, to every host"
)


def read_same(
    read: Callable[[], dict[str, Any]], path: str | Path, device: torch.device
) -> dict[str, Any]:
    """Read a checkpoint, and compare it with those of the other ranks.

    A collective of the world: every rank must call it, or ``read_nothing``.

    Args:
        read: reads it.
        path: of the checkpoint, as this rank calls it.
        device: of collectives.

    Raises:
        OSError: on every rank, if none can read it.
        ValueError: on every rank, if the ranks resume from different checkpoints, or some from
            none, or only some can read it.

    """
    try:
        checkpoint = read()
        described = _described(checkpoint)
    except Exception as error:
        _compare({"path": str(path), "error": f"{type(error).__name__}: {error}"}, device, error)
        raise
    _compare({"path": str(path), "holds": described}, device)
    return checkpoint


def read_nothing(device: torch.device) -> None:
    """Compare with the other ranks that this one resumes from nothing.

    A collective of the world: every rank must call it, or ``read_same``.

    Raises:
        ValueError: on every rank, if another rank resumes from a checkpoint.

    """
    _compare({}, device)


def _described(checkpoint: Mapping[str, Any]) -> str:
    """What tells one checkpoint from another, wherever the file lies."""
    section = section_of(checkpoint)
    saved = "" if section is None else f", save of the checkpoint {section['save']}"
    return f"epoch {checkpoint.get('epoch')}, step {checkpoint.get('global_step')}{saved}"


def _compare(
    own: Mapping[str, str], device: torch.device, own_error: Exception | None = None
) -> None:
    rows = gather_json(own, device, place="the comparison of checkpoints")
    if len({"error" if "error" in row else row.get("holds") for row in rows}) == 1:
        return  # where none could read it, each raises its own error
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank, row in enumerate(rows):
        ranks[_text(row)].append(rank)
    said = "; ".join(f"{_ranks(of_text)} {text}" for text, of_text in ranks.items())
    problem = f"the ranks do not resume from the same checkpoint: {said}. {_WAY_OUT}"
    raise ValueError(problem) from own_error


def _text(row: Mapping[str, str]) -> str:
    if not row:
        return "begin anew, since they were given no checkpoint"
    if "error" in row:
        return f"could not read {row['path']} ({row['error']})"
    return f"resume from {row['path']} ({row['holds']})"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
