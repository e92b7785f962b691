"""MNIST, or another dataset in its idx format, from a local directory."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
import torch

from examples.image.corpus import Corpus, Split, random_split

_UNSIGNED_BYTE = 0x08


def build_mnist_corpus(*, path: str, valid_images: int = 1000, split_seed: int = 0) -> Corpus:
    """Read ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, each with or without ``.gz``.

    Args:
        path: directory of the files. Training requires the two train files, test the two t10k
            files.
        valid_images: number of random training images that are the valid split. The t10k images are
            the test split.
        split_seed: seed of their selection.

    Raises:
        FileNotFoundError: if there are no files, or images without labels or labels without images.
        ValueError: if a file is damaged or has another format. The message names it.
    """
    folder = Path(path)
    published, test = _split(folder, "train"), _split(folder, "t10k")
    if published is None and test is None:
        raise FileNotFoundError(
            f"{folder} has neither train-images-idx3-ubyte.gz nor t10k-images-idx3-ubyte.gz"
        )
    valid, train = None, None
    if published is not None:
        valid, train = random_split(published, valid_images, seed=split_seed)
    return Corpus(name="mnist", num_classes=10, train=train, valid=valid, test=test)


def _split(folder: Path, prefix: str) -> Split | None:
    """Return the images and labels of the files with this prefix, or None without files."""
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

    The file begins with two zeros, the type, and the number of dimensions (one byte each). The size
    of each dimension (4 bytes, big-endian) and the values in row-major order follow.

    Args:
        file: the file. It is decompressed if its name ends in ``.gz``.
        dimensions: expected number of dimensions.

    Raises:
        ValueError: if the format is different, or the number of values does not fit the sizes.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, OSError) as error:
        raise ValueError(f"{file} can't be decompressed: {error}") from error
    first = 4 + 4 * dimensions
    expected = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if len(content) < first or content[:4] != expected:
        raise ValueError(
            f"{file} must be an idx file of unsigned bytes in {dimensions} dimensions, which "
            f"begins with {expected.hex(' ')}; it begins with {content[:4].hex(' ')}"
        )
    sizes = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - first != math.prod(sizes):
        raise ValueError(
            f"{file} must hold {math.prod(sizes)} values according to its sizes {sizes}, got "
            f"{len(content) - first}"
        )
    return np.frombuffer(content, np.uint8, offset=first).reshape(sizes).copy()
