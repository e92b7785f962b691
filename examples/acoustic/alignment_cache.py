"""Alignments as arrays, so that a corpus is aligned once for all ranks and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array, is_cached

# Raise it whenever the file, or how alignments are made, changes its meaning.
_FORMAT = 2


def cached_alignments(
    name: str,
    made_from: Mapping[str, Any],
    cache_dir: str | Path | None,
    make: Callable[[], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Read alignments from ``cache_dir``, or make them and write them there; see ``cached_arrays``.

    Args:
        name: start of the file's name.
        made_from: all that the alignments depend on, as JSON.
        cache_dir: folder; None makes them without reading or writing.
        make: makes the alignments: int64 senones (T,) by key.

    """
    file, contents = _named(name, made_from)
    arrays = cached_arrays(file, contents, cache_dir, lambda: _to_arrays(make()))
    parts = torch.from_numpy(arrays["senones"]).long().split(arrays["frames"].tolist())
    return dict(zip(from_json_array(arrays["keys"]), parts, strict=True))


def are_cached(name: str, made_from: Mapping[str, Any], cache_dir: str | Path) -> bool:
    """Whether :func:`cached_alignments` would find them."""
    return is_cached(*_named(name, made_from), cache_dir)


def _named(name: str, made_from: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"{name}-alignments", {"format": _FORMAT, **made_from}


def _to_arrays(alignments: Mapping[str, Tensor]) -> Arrays:
    return {
        "keys": as_json_array(list(alignments)),
        "frames": np.array([len(senones) for senones in alignments.values()]),
        "senones": torch.cat(list(alignments.values())).numpy().astype(np.int32),
    }
