"""Loops over large float32 tensors on the CPU, compiled where the host has a C compiler.

Between two operations of torch or NumPy a chunk goes to the second-level cache and back; one loop
keeps it in registers, and takes a half to a fifth of the time. Nothing depends on it: without a
compiler, for other dtypes and for small tensors torch and NumPy do the same, to the same bits.

The files are compiled once in a process, when the first large tensor comes, in a folder of their
own that is deleted at once: nothing is kept that another user, or another kind of processor that
shares the home folder, could come by. ``LIGHTNING_HIER_COMPILE=0`` in the environment forbids it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

# Below, calling costs more than the loop saves, and a small model does not wait for a compiler.
SMALLEST = 1 << 16

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
_LIMIT_S = 60.0


def library_for(*tensors: Tensor) -> ctypes.CDLL | None:
    """The compiled loops, where they can and should be used for these tensors; otherwise None."""
    fits = all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        for tensor in tensors
    )
    return compiled_library() if fits and tensors[0].numel() >= SMALLEST else None


@lru_cache(maxsize=1)
def compiled_library() -> ctypes.CDLL | None:
    """Compile and load; None where that is forbidden or fails, for whatever reason."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("LIGHTNING_HIER_COMPILE") == "0" or compiler is None:
        return None
    if sys.byteorder != "little" or os.name != "posix":
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="lightning_hier-") as folder:
            target = Path(folder) / "passes.so"
            subprocess.run(
                [compiler, *_OPTIONS, *map(str, _SOURCES), "-o", str(target), "-lm"],
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
            )
            return ctypes.CDLL(str(target))
    except (OSError, subprocess.SubprocessError):
        return None
