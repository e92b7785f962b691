"""MNIST, or anything else in its idx files, from a folder of the user's."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import torch

from examples.image.corpus import Corpus, Split, take_out

_UNSIGNED_BYTE = 0x08


def build_mnist_corpus(*, path: str, valid_images: int = 1000, split_seed: int = 0) -> Corpus:
    """Read ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, each with or without ``.gz``.

    Args:
        path: folder of the four files; the two of the test split are enough to test, those of the
            train split to train.
        valid_images: taken from the train images at random; the t10k images are the test split.
        split_seed: of the division.

    Raises:
        FileNotFoundError: one of two files that belong together is missing, or all four are.
        ValueError: a file is damaged or of another format; it is named.
    """
    folder = Path(path)
    published, test = _split(folder, "train"), _split(folder, "t10k")
    if published is None and test is None:
        raise FileNotFoundError(
            f"{folder} has neither train-images-idx3-ubyte.gz nor t10k-images-idx3-ubyte.gz"
        )
    valid, train = None, None
    if published is not None:
        valid, train = take_out(published, valid_images, seed=split_seed)
    return Corpus(name="mnist", num_classes=10, train=train, valid=valid, test=test)


def _split(folder: Path, prefix: str) -> Split | None:
    """The images and labels of these files, or None where there is none of them."""
    if not any(folder.glob(f"{prefix}-*-ubyte*")):
        return None
    images = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    return Split(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _find(folder: Path, name: str) -> Path:
    for file in (folder / f"{name}.gz", folder / name):
        if file.exists():
            return file
    raise FileNotFoundError(f"{folder} has neither {name}.gz nor {name}")


def read_idx(file: Path, *, dimensions: int) -> np.ndarray:
    """Read an idx file of unsigned bytes.

    It begins with two zeros, the type and the number of dimensions (a byte each), then has the size
    of each dimension (4 bytes, the highest first), then the values, the last dimension fastest.

    Args:
        file: compressed if its name ends in ``.gz``.
        dimensions: that it must have.

    Raises:
        ValueError: another format, or more or fewer values than its sizes say.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, OSError) as error:
        raise ValueError(f"{file} can't be decompressed: {error}") from error
    first = 4 + 4 * dimensions
    wanted = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if len(content) < first or content[:4] != wanted:
        raise ValueError(
            f"{file} must be an idx file of unsigned bytes in {dimensions} dimensions, which "
            f"begins with {wanted.hex(' ')}; it begins with {content[:4].hex(' ')}"
        )
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - first != math.prod(sizes):
        raise ValueError(
            f"{file} must hold {math.prod(sizes)} values for its sizes {sizes}, got "
            f"{len(content) - first}"
        )
    return np.frombuffer(content, np.uint8, offset=first).reshape(sizes).copy()
