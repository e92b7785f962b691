"""Matrices and vectors of Kaldi archives.

Tables may contain commands, and archives may contain Python pickles. Both would execute code of the
author of the data, so they are errors here. The entries of tables are parsed here as well, because
kaldiio also executes commands that are followed by an offset or a range.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
from kaldiio import matio

# Path, offset, and range of rows and columns: feats.ark:123[0:99,0:12]
_RXFILENAME = re.compile(r"(?P<path>.+?)(?::(?P<offset>\d+))?(?:\[(?P<range>[\d:, ]*)\])?")
_BINARY = b"\0B"
_TEXT = (b" ", b"\t", b"\n", b"[")


def read_rxfilename(rxfilename: str, folder: Path) -> np.ndarray:
    """Read a matrix or vector by its extended filename (Kaldi's rxfilename).

    Args:
        rxfilename: file name, optionally with an offset and a range of rows and columns. Both ends
            of a range are included.
        folder: folder of the table. Relative paths refer to the working directory, as in Kaldi, or
            else to this folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the name is a command, or the file has no matrix or vector at the offset.
    """
    match = _RXFILENAME.fullmatch(rxfilename.strip())
    if match is None or "|" in (match["path"].strip()[0], match["path"].strip()[-1]):
        raise ValueError(
            f"commands in tables are not run: {rxfilename!r}; copy the features to a file"
        )
    file = Path(match["path"]) if Path(match["path"]).is_file() else folder / match["path"]
    with file.open("rb") as stream:
        stream.seek(int(match["offset"] or 0))
        array = _read(stream, file)
    return array[_slices(match["range"])] if match["range"] else array


def read_archive(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the keys of an archive and their matrices or vectors.

    Archives whose names end in ``.gz`` are decompressed.

    Raises:
        ValueError: the archive contains something other than matrices and vectors.
    """
    stream: IO[bytes]
    with cast(IO[bytes], gzip.open(file)) if file.suffix == ".gz" else file.open("rb") as stream:
        while (key := matio.read_token(stream)) is not None:
            yield key, _read(stream, file)


def _read(stream: IO[bytes], file: Path) -> np.ndarray:
    begin = stream.read(2)
    stream.seek(-len(begin), 1)
    if begin != _BINARY and not begin.startswith(_TEXT):
        raise ValueError(
            f"{file} has something that begins with {begin!r} instead of a matrix or vector of "
            "Kaldi; pickles and sounds are not read"
        )
    return cast(np.ndarray, matio.read_kaldi(stream))


def _slices(text: str) -> tuple[slice, ...]:
    return tuple(_slice(*part.partition(":")) for part in text.split(","))


def _slice(first: str, _: str, last: str) -> slice:
    return slice(int(first) if first.strip() else None, int(last) + 1 if last.strip() else None)
