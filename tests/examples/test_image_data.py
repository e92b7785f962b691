"""Tests of the image example's data: formats and splits."""

from __future__ import annotations

import gzip
import pickle
import struct
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.image.corpora.cifar10 import build_cifar10_corpus
from examples.image.corpora.digits import build_digits_corpus
from examples.image.corpora.mnist import build_mnist_corpus, read_idx


def idx(values: np.ndarray) -> bytes:
    """An idx file of unsigned bytes, as in the published description."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(struct.pack(">I", n) for n in values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, *, train: int = 12, test: int = 5, compressed: bool = True) -> None:
    """Write images. All pixels of an image are its number, whose last digit is the label."""
    for prefix, count in (("train", train), ("t10k", test)):
        numbers = np.arange(count)
        images = np.broadcast_to(numbers[:, None, None], (count, 28, 28))
        for kind, values in (("images-idx3", images), ("labels-idx1", numbers % 10)):
            content = idx(values)
            name = f"{prefix}-{kind}-ubyte"
            if compressed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def test_digits_are_divided_without_loss_and_the_same_each_time() -> None:
    corpus = build_digits_corpus()
    splits = (corpus.train, corpus.valid, corpus.test)
    assert [len(split) for split in splits] == [1197, 300, 300]
    assert corpus.train.images.shape[1:] == (1, 8, 8)
    assert corpus.train.images.max() == 255 and corpus.channels == 1
    every = torch.cat([split.images.flatten(1) for split in splits])
    from sklearn.datasets import load_digits

    wanted = torch.from_numpy(np.rint(load_digits().data * 255 / 16).astype(np.uint8))
    assert sorted(map(tuple, every.tolist())) == sorted(map(tuple, wanted.tolist()))
    assert torch.equal(corpus.test.images, build_digits_corpus().test.images)
    assert not torch.equal(corpus.test.images, build_digits_corpus(split_seed=1).test.images)


@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_files_are_read(tmp_path: Path, compressed: bool) -> None:
    write_mnist(tmp_path, compressed=compressed)
    corpus = build_mnist_corpus(path=str(tmp_path), valid_images=4)
    assert [len(s) for s in (corpus.train, corpus.valid, corpus.test)] == [8, 4, 5]
    for split in (corpus.train, corpus.valid, corpus.test):
        assert split.images.shape[1:] == (1, 28, 28)
        assert torch.equal(split.images[:, 0, 3, 7].long() % 10, split.labels)
    both = torch.cat([corpus.train.images, corpus.valid.images])[:, 0, 0, 0]
    assert sorted(both.tolist()) == list(range(12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((2, 3))), "unsigned bytes in 1 dimensions"),
        (b"\x00\x00\x0d\x01" + bytes(8), "begins with 00 00 0d 01"),
        (idx(np.zeros(5))[:-1], "must hold 5 values"),
        (idx(np.zeros(5)) + b"x", "must hold 5 values"),
        (b"\x00\x00", "begins with 00 00"),
    ],
)
def test_damaged_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "labels", dimensions=1)


def test_cifar10_is_read_from_the_users_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in the published format, with their own checksums in place of the published ones."""
    from torchvision.datasets import CIFAR10

    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()

    def write(name: str, content: dict) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return md5((folder / name).read_bytes()).hexdigest()

    def batch(first: int) -> dict:
        # A row has 1024 red values, then 1024 green and 1024 blue ones.
        rows = [[first + n] * 1024 + [100] * 1024 + [200] * 1024 for n in range(3)]
        return {"data": np.array(rows, np.uint8), "labels": [first + n for n in range(3)]}

    lists = {
        "train_list": [["data_batch_1", write("data_batch_1", batch(0))]],
        "test_list": [["test_batch", write("test_batch", batch(3))]],
    }
    names = {"label_names": [str(n) for n in range(10)]}
    meta = {"filename": "batches.meta", "key": "label_names"}
    monkeypatch.setattr(CIFAR10, "meta", {**meta, "md5": write("batches.meta", names)})
    for attribute, files in lists.items():
        monkeypatch.setattr(CIFAR10, attribute, files)
    corpus = build_cifar10_corpus(path=str(tmp_path), valid_images=1)
    assert [len(s) for s in (corpus.train, corpus.valid, corpus.test)] == [2, 1, 3]
    assert corpus.test.images.shape == (3, 3, 32, 32)
    assert corpus.test.images[:, :, 5, 9].tolist() == [[n, 100, 200] for n in (3, 4, 5)]
    assert corpus.test.labels.tolist() == [3, 4, 5]
    (folder / "data_batch_1").unlink()
    alone = build_cifar10_corpus(path=str(tmp_path))
    assert alone.train is None and torch.equal(alone.test.images, corpus.test.images)
