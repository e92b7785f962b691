"""Kaldi's archives, read as what they mostly are: files of matrices and vectors.

A table may name a command instead of a file, and what comes behind a key may be a Python pickle:
both would run code of whoever made the data. Neither is done here. The places of a table are taken
apart here too, since kaldiio takes a command for one that has an offset or a range behind it.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
from kaldiio import matio

# A file, where in it, and which rows and columns: feats.ark:123[0:99,0:12]
_PLACE = re.compile(r"(?P<path>.+?)(?::(?P<offset>\d+))?(?:\[(?P<range>[\d:, ]*)\])?")
_BINARY = b"\0B"
_TEXT = (b" ", b"\t", b"\n", b"[")


def read_rxfilename(place: str, folder: Path) -> np.ndarray:
    """Read what a table names.

    Args:
        place: a file, perhaps with an offset and a range, whose ends belong to it.
        folder: of the table; files are looked for in the working directory, as Kaldi does, and then
            here.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a command, or no matrix or vector is there.
    """
    found = _PLACE.fullmatch(place.strip())
    if found is None or "|" in (found["path"].strip()[0], found["path"].strip()[-1]):
        raise ValueError(f"commands in tables are not run: {place!r}; copy the features to a file")
    file = Path(found["path"]) if Path(found["path"]).is_file() else folder / found["path"]
    with file.open("rb") as stream:
        stream.seek(int(found["offset"] or 0))
        array = _read(stream, file)
    return array[_slices(found["range"])] if found["range"] else array


def read_archive(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the keys of an archive, compressed if its name ends in ``.gz``, and what they have.

    Raises:
        ValueError: something else than a matrix or a vector is there.
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
            f"{file} has something that begins with {begin!r} where a matrix or vector of Kaldi "
            "should be; pickles and sounds are not read"
        )
    return cast(np.ndarray, matio.read_kaldi(stream))


def _slices(text: str) -> tuple[slice, ...]:
    return tuple(_slice(*part.partition(":")) for part in text.split(","))


def _slice(first: str, _: str, last: str) -> slice:
    return slice(int(first) if first.strip() else None, int(last) + 1 if last.strip() else None)
