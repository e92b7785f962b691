"""Tests of rendered lines: fonts, texts, digits."""

from __future__ import annotations

import numpy as np
import pytest

from examples.ocr.alphabet import KEYBOARD
from examples.ocr.corpora.digits import digits_of
from examples.ocr.corpora.fonts import typefaces
from examples.ocr.corpora.synthetic import build_synthetic_corpus
from examples.ocr.corpora.wording import Wording
from examples.ocr.corpus import SPLITS

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


def test_fonts_have_the_characters_that_they_report() -> None:
    faces = typefaces()
    assert len(faces) >= 15
    for face in faces:
        characters = "".join(character for character in KEYBOARD if face.can_write(character))
        assert len(characters) > 80
        shapes = {
            character: np.asarray(face.at(40).getmask(character)).tobytes()
            for character in characters.replace(" ", "")
        }
        # A font draws the same box for every character that it lacks.
        assert len(set(shapes.values())) >= len(shapes) - 1, face.name


def test_texts_reach_every_key() -> None:
    wording = Wording(np.random.default_rng(0), max_characters=32)
    lines = [wording.line() for _ in range(3000)]
    assert set("".join(lines)) == set(KEYBOARD)
    assert max(map(len, lines)) <= 32
    assert all(line == " ".join(line.split()) for line in lines)


def test_digits_of_the_splits_are_different_pictures() -> None:
    parts = {split: digits_of(split) for split in SPLITS}
    assert sum(len(labels) for _, labels in parts.values()) == 1797
    for images, labels in parts.values():
        assert set(labels.tolist()) == set(range(10))
        assert images.shape[1:] == (8, 8)
        assert np.median(images[:, :, 0]) == 255  # dark on white
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        digits_of("dev")
