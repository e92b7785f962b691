"""Cache of arrays on disk, so that they are computed once for all ranks and runs."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

Arrays = Mapping[str, np.ndarray]

_LOCK_TIMEOUT_S = 1800.0


def default_cache_dir() -> Path:
    """Return ``lightning_hier`` in the user's cache folder (``XDG_CACHE_HOME`` or ``~/.cache``)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lightning_hier"


def cached_arrays(
    name: str,
    inputs: Mapping[str, Any],
    cache_dir: str | Path | None,
    compute: Callable[[], Arrays],
) -> Arrays:
    """Read arrays from a cache, or compute them and write them there.

    If several processes call it at the same time, one of them computes the arrays and the others
    wait. The file contains no pickles.

    Args:
        name: prefix of the file name.
        inputs: everything that the arrays depend on, as JSON. The file name contains its hash.
        cache_dir: folder of the cache, which is created if necessary. None: compute the arrays,
            without reading or writing.
        compute: function that returns the arrays by name.

    Raises:
        ValueError: the file is damaged.
        TimeoutError: another process has been computing the arrays for half an hour.
    """
    if cache_dir is None:
        return compute()
    path = _path(name, inputs, cache_dir)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # The operating system releases the lock of a process that dies.
        with FileLock(f"{path}.lock", timeout=_LOCK_TIMEOUT_S):
            if not path.exists():
                _write(compute(), path)
    return _read(path)


def is_cached(name: str, inputs: Mapping[str, Any], cache_dir: str | Path) -> bool:
    """Return whether the cache of :func:`cached_arrays` contains these arrays."""
    return _path(name, inputs, cache_dir).exists()


def as_json_array(value: Any) -> np.ndarray:
    """Return the JSON of a value as bytes in an array."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def from_json_array(array: np.ndarray) -> Any:
    """Return the value of :func:`as_json_array`."""
    return json.loads(array.tobytes())


def _path(name: str, inputs: Mapping[str, Any], cache_dir: str | Path) -> Path:
    text = json.dumps(inputs, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Path(cache_dir) / f"{name}-{digest}.npz"


def _write(arrays: Arrays, path: Path) -> None:
    """Write to a temporary file and rename it, so that no process reads an incomplete file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable cache file ({error}); delete it, and it is computed again"
        ) from error
