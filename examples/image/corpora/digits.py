"""Handwritten digits of 8 x 8 pixels, which are installed with scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from examples.image.corpus import Corpus, Split, random_split


def build_digits_corpus(
    *, valid_images: int = 300, test_images: int = 300, split_seed: int = 0
) -> Corpus:
    """Return the 1797 digits in random splits.

    Args:
        valid_images: number of images of the valid split.
        test_images: number of images of the test split. The others are the train split.
        split_seed: seed of the splits.

    Raises:
        ValueError: if a split would be empty.
    """
    from sklearn.datasets import load_digits  # slow import that only this corpus needs

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    all_images = Split(
        torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(digits.target).to(torch.int64)
    )
    test, rest = random_split(all_images, test_images, seed=split_seed)
    valid, train = random_split(rest, valid_images, seed=split_seed)
    return Corpus(name="digits", num_classes=10, train=train, valid=valid, test=test)
