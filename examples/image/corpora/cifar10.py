"""CIFAR-10, from a local copy."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.image.corpus import Corpus, Split, random_split


def build_cifar10_corpus(*, path: str, valid_images: int = 5000, split_seed: int = 0) -> Corpus:
    """Read the Python version of CIFAR-10 through torchvision, which verifies the checksums.

    Args:
        path: directory that contains ``cifar-10-batches-py``. Nothing is downloaded. To test,
            ``batches.meta`` and ``test_batch`` are sufficient.
        valid_images: number of random training images that are the valid split.
        split_seed: seed of their selection.

    Raises:
        FileNotFoundError: if the files are missing or modified.
    """
    batches = Path(path) / "cifar-10-batches-py"
    valid, train = None, None
    if any(batches.glob("data_batch_*")) or not batches.is_dir():
        valid, train = random_split(_split(path, train=True), valid_images, seed=split_seed)
    test = _split(path, train=False) if (batches / "test_batch").exists() else None
    return Corpus(name="cifar10", num_classes=10, train=train, valid=valid, test=test)


def _split(path: str, *, train: bool) -> Split:
    from torchvision.datasets import CIFAR10  # slow import that only this corpus needs

    class OneSplit(CIFAR10):
        """CIFAR-10 that does not require the files of the other split."""

        train_list = CIFAR10.train_list if train else []
        test_list = [] if train else CIFAR10.test_list

    try:
        published = OneSplit(path, train=train, download=False)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"{path} contains no complete copy of CIFAR-10: unpack cifar-10-python.tar.gz there, "
            "which creates the directory cifar-10-batches-py"
        ) from error
    return Split(
        torch.from_numpy(published.data).permute(0, 3, 1, 2).contiguous(),
        torch.tensor(published.targets, dtype=torch.int64),
    )
