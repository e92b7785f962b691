"""Tests of rendered lines: they are determined by their seed."""

from __future__ import annotations

import numpy as np

from examples.ocr.alphabet import KEYBOARD
from examples.ocr.corpora.synthetic import build_synthetic_corpus

SMALL = {"train_lines": 24, "valid_lines": 6, "test_lines": 6}


def test_corpus_has_prints_and_digits_of_one_height() -> None:
    corpus = build_synthetic_corpus(**SMALL, handwritten=0.4, height=32)
    assert [len(lines) for lines in corpus.splits.values()] == [24, 6, 6]
    lines = [line for split in corpus.splits.values() for line in split]
    assert len({line.text for line in lines}) == len(lines)
    assert {line.key.split("-")[0] for line in lines} == {"print", "digits"}
    for line in lines:
        assert line.image.shape[0] == 32
        assert line.image.dtype == np.uint8
        assert set(line.text) <= set(KEYBOARD)
        assert 0 < len(line.text) <= 32
        # Some ink, much more paper.
        middle = (float(line.image.min()) + float(line.image.max())) / 2
        assert 0.02 < (line.image < middle).mean() < 0.5
        # Every character has some room.
        assert line.width > 4 * len(line.text)


def test_same_seed_same_lines_and_more_lines_change_none() -> None:
    first = build_synthetic_corpus(**SMALL, height=32)
    again = build_synthetic_corpus(**{**SMALL, "train_lines": 30}, height=32)
    for one, other in zip(first.train, again.train, strict=False):
        assert one.text == other.text
        assert np.array_equal(one.image, other.image)
    reseeded = build_synthetic_corpus(**SMALL, height=32, seed=1)
    assert [line.text for line in reseeded.train] != [line.text for line in first.train]
