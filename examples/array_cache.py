"""Arrays on disk, so that what takes long to make is made once for all ranks and runs."""

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

_LONGEST_WAIT_S = 1800.0


def default_cache_dir() -> Path:
    """``lightning_hier`` in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lightning_hier"


def cached_arrays(
    name: str,
    made_from: Mapping[str, Any],
    cache_dir: str | Path | None,
    make: Callable[[], Arrays],
) -> Arrays:
    """Read arrays from ``cache_dir``, or make them and write them there.

    Of several processes that ask for the same arrays at once, one makes them and the others wait.
    The file holds no pickle.

    Args:
        name: start of the file's name.
        made_from: all that the arrays depend on, as JSON; other values, another file.
        cache_dir: folder, made where missing; None makes the arrays without reading or writing.
        make: makes the arrays, by name.

    Raises:
        ValueError: a damaged file; it is named.
        TimeoutError: another process has been making them for half an hour.
    """
    if cache_dir is None:
        return make()
    path = _path(name, made_from, cache_dir)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock ends with its process: one that dies does not stop the others.
        with FileLock(f"{path}.lock", timeout=_LONGEST_WAIT_S):
            if not path.exists():
                _write(make(), path)
    return _read(path)


def is_cached(name: str, made_from: Mapping[str, Any], cache_dir: str | Path) -> bool:
    """Whether :func:`cached_arrays` would find these arrays."""
    return _path(name, made_from, cache_dir).exists()


def as_json_array(value: Any) -> np.ndarray:
    """Anything JSON can say, as bytes in an array."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def from_json_array(array: np.ndarray) -> Any:
    """The inverse of :func:`as_json_array`."""
    return json.loads(array.tobytes())


def _path(name: str, made_from: Mapping[str, Any], cache_dir: str | Path) -> Path:
    text = json.dumps(made_from, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Path(cache_dir) / f"{name}-{digest}.npz"


def _write(arrays: Arrays, path: Path) -> None:
    """Write under another name first: no reader ever sees half a file."""
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
            f"{path} is not a readable cache file ({error}); delete it, and it is made again"
        ) from error
