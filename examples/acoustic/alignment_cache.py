"""Cache of alignments, so that a corpus is aligned once for all ranks and runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array, is_cached

# Version of the cache. A change of the files, or of the computation of alignments, increments it.
_FORMAT = 2


def cached_alignments(
    name: str,
    inputs: Mapping[str, Any],
    cache_dir: str | Path | None,
    compute: Callable[[], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Read alignments from a cache, or compute them and write them there. See ``cached_arrays``.

    Args:
        name: prefix of the file name.
        inputs: everything that the alignments depend on, as JSON.
        cache_dir: folder of the cache. None: compute them, without reading or writing.
        compute: function that returns the alignments: int64 senones (T,) by key.

    """
    arrays = cached_arrays(
        *_file_and_inputs(name, inputs), cache_dir, lambda: _to_arrays(compute())
    )
    alignments = torch.from_numpy(arrays["senones"]).long().split(arrays["frames"].tolist())
    return dict(zip(from_json_array(arrays["keys"]), alignments, strict=True))


def are_cached(name: str, inputs: Mapping[str, Any], cache_dir: str | Path) -> bool:
    """Return whether the cache of :func:`cached_alignments` contains these alignments."""
    return is_cached(*_file_and_inputs(name, inputs), cache_dir)


def _file_and_inputs(name: str, inputs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"{name}-alignments", {"format": _FORMAT, **inputs}


def _to_arrays(alignments: Mapping[str, Tensor]) -> Arrays:
    return {
        "keys": as_json_array(list(alignments)),
        "frames": np.array([len(senones) for senones in alignments.values()]),
        "senones": torch.cat(list(alignments.values())).numpy().astype(np.int32),
    }
