"""Files of tokens (``.bin``): a header of 24 bytes, then the tokens, all little-endian.

====== ======= =============================================================
offset type    meaning
====== ======= =============================================================
0      8 bytes magic, ``LHTOKENS`` in ASCII
8      uint32  version of the format, 1
12     uint32  code of the tokens' dtype: 2 for uint16, 4 for uint32
16     uint64  number of tokens
24     tokens  concatenated documents, separated by the end-of-document token
====== ======= =============================================================
"""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import numpy as np

_MAGIC = b"LHTOKENS"
_VERSION = 1
_HEADER = struct.Struct("<8sIIQ")
# The code is the number of bytes of a token.
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


def write_shard(path: str | Path, tokens: np.ndarray) -> None:
    """Write tokens as a shard. An existing file is replaced.

    Args:
        path: path of the file. Its folder must exist.
        tokens: (N,) uint16 or uint32.

    Raises:
        ValueError: the tokens have another shape or dtype.

    """
    code = tokens.dtype.itemsize
    if tokens.ndim != 1 or tokens.dtype.kind != "u" or code not in _DTYPES:
        raise ValueError(
            f"tokens must be (N,) uint16 or uint32, got {tokens.shape} {tokens.dtype}; convert them"
        )
    header = _HEADER.pack(_MAGIC, _VERSION, code, len(tokens))
    target = Path(path)
    # A temporary file is renamed at the end, so that other processes never read a partial file.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            file.write(tokens.astype(_DTYPES[code], copy=False).tobytes())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def map_shard(path: str | Path) -> np.ndarray:
    """Map the tokens of a shard into memory: (N,) uint16 or uint32, read-only.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a shard, has an unsupported version or dtype, or its length does
            not match its header.

    """
    file = Path(path)
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(_HEADER.size)
    if len(start) < _HEADER.size or start[: len(_MAGIC)] != _MAGIC:
        raise ValueError(
            f"{file} must begin with {_MAGIC!r} and have a header of {_HEADER.size} bytes, it "
            f"begins with {start[: len(_MAGIC)]!r}; write it with "
            "examples.language.shards.write_shard"
        )
    _, version, code, count = _HEADER.unpack(start)
    if version != _VERSION:
        raise ValueError(
            f"{file} must have version {_VERSION} of the format, got {version}; write it again"
        )
    if code not in _DTYPES:
        raise ValueError(
            f"{file} must have dtype code 2 (uint16) or 4 (uint32), got {code}; write it again"
        )
    expected = _HEADER.size + count * code
    if size != expected:
        raise ValueError(
            f"{file} must have {expected} bytes for the {count} tokens of its header, got {size}; "
            "it was truncated or changed: copy or write it again"
        )
    if count == 0:
        return np.empty(0, _DTYPES[code])  # memmap does not support empty arrays
    return np.memmap(file, dtype=_DTYPES[code], mode="r", offset=_HEADER.size, shape=(count,))
