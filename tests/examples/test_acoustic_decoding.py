"""Tests that the decoder finds exactly the words of toy acoustic scores."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("kaldifst", reason="decoding needs the extra 'examples'")
pytest.importorskip("kaldi_decoder", reason="decoding needs the extra 'examples'")

from examples.acoustic.decoding import (  # noqa: E402
    WFSTDecoder,
    WordLoop,
)
from examples.acoustic.lexicon import Lexicon  # noqa: E402
from examples.acoustic.senones import SenoneMap  # noqa: E402

# "two" and "too" are homophones, "on" begins "once", "a" has two pronunciations.
LEXICON = Lexicon.from_dict(
    {
        "two": "t u",
        "too": "t u",
        "on": "o n",
        "once": "o n s",
        "a": ["a", "e i"],
        "tea": "t i",
        "noon": "n u n",
    }
)
SENONES = SenoneMap(phones=("sil", *LEXICON.phones))
CLEAR = ("two", "on", "once", "a", "tea", "noon")


def spoken(words: list[str], *, seed: int, silence: float = 0.5, states: int = 3) -> list[int]:
    """Senone of each frame, with random durations, variants, silences, ``states`` of a phone."""
    draw = random.Random(seed)
    phones = ["sil"] if draw.random() < silence else []
    for word in words:
        phones += draw.choice(LEXICON.pronunciations(word))
        phones += ["sil"] if draw.random() < silence else []
    frames: list[int] = []
    for phone in phones:
        for senone in sorted(draw.sample(SENONES.of(phone), states)):
            frames += [senone] * draw.randint(1, 5)
    return frames


def scores(
    frames: list[int], *, noise: float = 0.0, seed: int = 0, preference: float = 4.0
) -> Tensor:
    """Log likelihoods (T, S) that prefer the given senones, with Gaussian noise."""
    generator = torch.Generator().manual_seed(seed)
    values = noise * torch.randn(len(frames), len(SENONES), generator=generator)
    values[torch.arange(len(frames)), torch.tensor(frames)] += preference
    return values


def sentences(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice(CLEAR) for _ in range(draw.randint(1, 6))] for _ in range(count)]


@pytest.mark.parametrize("silence", [0.0, 0.5, 1.0])
def test_words_of_clean_scores_come_back_exactly(silence: float) -> None:
    decoder = WFSTDecoder(SENONES, LEXICON, WordLoop(CLEAR), acoustic_scale=1.0)
    for seed, words in enumerate(sentences(25, seed=1)):
        frames = spoken(words, seed=seed, silence=silence)
        decoded, path = decoder.decode_with_senones(scores(frames))
        assert decoded == words
        assert path == frames


def test_lexicon_reads_variants_and_lists_unknown_words(tmp_path: Path) -> None:
    path = tmp_path / "words.dic"
    path.write_text(";;; comment\nA   AH\nA(2)   EY\n\nAND  AE N D\n", encoding="utf-8")
    lexicon = Lexicon.from_file(path)
    assert lexicon.words == ("A", "AND")
    assert lexicon.pronunciations("A") == [("AH",), ("EY",)]
    assert lexicon.phones == ("AE", "AH", "D", "EY", "N")
    assert lexicon == Lexicon.from_dict({"A": ["AH", "EY"], "AND": "AE N D"})
    with pytest.raises(KeyError, match=r"2 word\(s\) without pronunciation: BEE, SEA"):
        lexicon.check_words(["SEA", "A", "BEE", "SEA"])
    path.write_text("A AH\nB\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"words.dic:2: word 'B' has no phones"):
        Lexicon.from_file(path)
