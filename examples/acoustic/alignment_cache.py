"""Alignments on disk, so that a corpus is aligned once and every rank and run reads the result."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Raise it whenever the file, or how alignments are made, changes its meaning.
_FORMAT = 1


def cached_alignments(
    name: str,
    made_from: Mapping[str, Any],
    cache_dir: str | Path | None,
    make: Callable[[], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Read alignments from ``cache_dir``, or make them and write them there.

    Args:
        name: start of the file's name.
        made_from: all that the alignments depend on, as JSON; other values, another file.
        cache_dir: folder, made where missing; None makes them without reading or writing.
        make: makes the alignments: int64 senones (T,) by key.

    Raises:
        ValueError: a damaged file; it is named.
    """
    if cache_dir is None:
        return dict(make())
    text = json.dumps({"format": _FORMAT, **made_from}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(cache_dir) / f"{name}-alignments-{digest}.npz"
    if not path.exists():
        _write(make(), path)
    return _read(path)


def _write(alignments: Mapping[str, Tensor], path: Path) -> None:
    """Write under another name first: a reader on another rank never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(
                file,
                keys=np.frombuffer(json.dumps(list(alignments)).encode(), dtype=np.uint8),
                frames=np.array([len(senones) for senones in alignments.values()]),
                senones=torch.cat(list(alignments.values())).numpy().astype(np.int32),
            )
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            keys = json.loads(file["keys"].tobytes())
            parts = torch.from_numpy(file["senones"]).long().split(file["frames"].tolist())
            return dict(zip(keys, parts, strict=True))
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable file of alignments ({error}); delete it, and it is made "
            "again"
        ) from error
