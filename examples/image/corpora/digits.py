"""Handwritten digits, 8 x 8 pixels, which come with scikit-learn: nothing to download."""

from __future__ import annotations

import numpy as np
import torch

from examples.image.corpus import Corpus, Split, take_out


def build_digits_corpus(
    *, valid_images: int = 300, test_images: int = 300, split_seed: int = 0
) -> Corpus:
    """The 1797 digits, divided at random.

    Args:
        valid_images: for the valid split.
        test_images: for the test split; the rest is the train split.
        split_seed: of the division.

    Raises:
        ValueError: no images would be left for a split.
    """
    from sklearn.datasets import load_digits  # a heavy import, for this corpus alone

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    everything = Split(
        torch.from_numpy(grey).unsqueeze(1), torch.from_numpy(digits.target).to(torch.int64)
    )
    test, rest = take_out(everything, test_images, seed=split_seed)
    valid, train = take_out(rest, valid_images, seed=split_seed)
    return Corpus(name="digits", num_classes=10, train=train, valid=valid, test=test)
