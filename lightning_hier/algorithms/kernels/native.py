"""C loops over float32 tensors on the CPU, compiled if the host has a C compiler.

Between two operations of torch, a chunk is written to the second-level cache and read again. A
single loop keeps it in registers and takes between a half and a seventh of the time. There are
loops where this decides the time of a training step: for GTC and for the codecs. They are optional:
without a compiler, for other dtypes and for small tensors, plain torch gives the same results.

Each process compiles the sources once, while a fit is set up or for the first large tensor. The
library is loaded from a new directory that is deleted directly afterwards, so that no other user,
and no host with a different processor that shares the home directory, can load it. The environment
variable ``LIGHTNING_HIER_COMPILE=0`` disables compilation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from ctypes import CDLL, c_float, c_int, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor

# Minimum number of elements for compiled loops. For fewer, the overhead of a call exceeds the gain,
# and a small model does not have to wait for the compiler.
SMALLEST = 1 << 16

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
# Without -ffp-contract=off, the compiler may fuse operations that torch rounds separately.
_OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
_LIMIT_S = 60.0

_TYPES: dict[str, Any] = {"f": c_float, "i": c_int, "l": c_int64, "p": c_void_p, "v": None}
# For each function: type of the result, a colon, types of the arguments. They must be those of the
# C sources: a difference is no error, but corrupts memory.
_SIGNATURES = {
    "encode": "l:pplfflpp",
    "decode": "v:pplfplppplpli",
    "encode_int8": "v:plplfpp",
    "decode_int8": "v:plppi",
    "encode_int4": "v:plplfpp",
    "decode_int4": "v:plppi",
    "encode_bfloat16": "v:plplfp",
    "largest": "v:plllp",
}

# lru_cache alone would let two threads compile at the same time.
_compiling = Lock()


def loops_for(first: Tensor, *others: Tensor | None) -> CDLL | None:
    """The functions of the C sources, or None if the tensors of a pass need plain torch.

    Args:
        first: a tensor that the pass reads or writes, as long as the longest.
        others: further tensors of the pass. None is skipped.

    """
    if first.numel() < SMALLEST:
        return None
    # Compiled loops assume one dtype and contiguous memory of the host.
    for tensor in (first, *others):
        if tensor is not None and not (
            tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
        ):
            return None
    return compiled_loops()


def prepare_loops(parameters: Iterable[Tensor]) -> None:
    """Compile the loops for these parameters in a thread, if they need any.

    Otherwise the first synchronisation would wait for the compiler. Does not wait.
    """
    # The sum, because parameters of one dtype are synchronised as one flat tensor.
    on_cpu = (p for p in parameters if p.device.type == "cpu" and p.dtype == torch.float32)
    if sum(parameter.numel() for parameter in on_cpu) >= SMALLEST:
        Thread(target=compiled_loops, daemon=True).start()


def compiled_loops() -> CDLL | None:
    """Compile and load the loops at the first call. Another thread's call then waits for them.

    None if compilation is disabled or fails for any reason.
    """
    with _compiling:
        return _compiled()


@lru_cache(maxsize=1)
def _compiled() -> CDLL | None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if os.environ.get("LIGHTNING_HIER_COMPILE") == "0" or compiler is None:
        return None
    # gtc.c finds elements by the position of bytes in a word.
    if sys.byteorder != "little" or os.name != "posix":
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="lightning_hier-") as folder:
            target = Path(folder) / "loops.so"
            subprocess.run(
                [compiler, *_OPTIONS, *map(str, _SOURCES), "-o", str(target), "-lm"],
                check=True,
                capture_output=True,
                timeout=_LIMIT_S,
            )
            # A loaded library stays mapped after its file is deleted.
            library = CDLL(str(target))
    except (OSError, subprocess.SubprocessError):
        return None
    for name, signature in _SIGNATURES.items():
        result, arguments = signature.split(":")
        function = getattr(library, name)
        function.restype = _TYPES[result]
        function.argtypes = [_TYPES[letter] for letter in arguments]
    return library
