"""CIFAR-10, from the user's copy."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.image.corpus import Corpus, Split, take_out


def build_cifar10_corpus(*, path: str, valid_images: int = 5000, split_seed: int = 0) -> Corpus:
    """Read the Python version of CIFAR-10 through torchvision, which checks its files' sums.

    Args:
        path: folder that holds ``cifar-10-batches-py``. Nothing is downloaded. ``batches.meta`` and
            ``test_batch`` are enough to test.
        valid_images: taken from the train images at random.
        split_seed: of the division.

    Raises:
        FileNotFoundError: the files are not there, or not as they were published.
    """
    batches = Path(path) / "cifar-10-batches-py"
    valid, train = None, None
    if any(batches.glob("data_batch_*")) or not batches.is_dir():
        valid, train = take_out(_split(path, train=True), valid_images, seed=split_seed)
    test = _split(path, train=False) if (batches / "test_batch").exists() else None
    return Corpus(name="cifar10", num_classes=10, train=train, valid=valid, test=test)


def _split(path: str, *, train: bool) -> Split:
    from torchvision.datasets import CIFAR10  # a heavy import, for this corpus alone

    class OneSplit(CIFAR10):
        """Does not ask for the files of the other split."""

        train_list = CIFAR10.train_list if train else []
        test_list = [] if train else CIFAR10.test_list

    try:
        published = OneSplit(path, train=train, download=False)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"{path} has no whole copy of CIFAR-10: unpack cifar-10-python.tar.gz there, so that "
            "it holds the folder cifar-10-batches-py"
        ) from error
    return Split(
        torch.from_numpy(published.data).permute(0, 3, 1, 2).contiguous(),
        torch.tensor(published.targets, dtype=torch.int64),
    )
