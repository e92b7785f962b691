"""Tests of best path and beam search against an enumeration of all paths and texts."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from examples.ocr.alphabet import Alphabet
from examples.ocr.decoding.best_path import best_paths, collapse

pytest.importorskip("flashlight.lib.text", reason="beam search needs flashlight-text")

from examples.ocr.decoding.beam import (  # noqa: E402
    BeamOptions,
    CharacterBeam,
    WordBeam,
)

ALPHABET = Alphabet("ab ")
TEXTS = ["ab a", "ab b", "ab ab", "b a", "aa b", "ab"]
# Without pruning, so that the search is exact.
EXACT = {"beam_size": 5000, "beam_size_token": None, "beam_threshold": 1e6}


def random_scores(frames: int, seed: int, classes: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, classes, generator=generator).mul(1.5).log_softmax(-1)


def text_scores(log_probs: Tensor, sum_paths: bool) -> dict[str, float]:
    """Log probability of each text: that of all its paths, or of its best path."""
    paths: defaultdict[str, list[float]] = defaultdict(list)
    for path in itertools.product(range(log_probs.shape[1]), repeat=log_probs.shape[0]):
        score = sum(log_probs[t, output].item() for t, output in enumerate(path))
        paths[ALPHABET.decode(collapse(list(path)))].append(score)
    if sum_paths:
        return {text: math.log(sum(map(math.exp, all_))) for text, all_ in paths.items()}
    return {text: max(scores) for text, scores in paths.items()}


def best_text(
    log_probs: Tensor,
    options: BeamOptions,
    language: Callable[[str], float],
    allowed: Callable[[str], bool] = lambda text: True,
) -> str:
    """The text with the best score as defined in beam.py, by enumeration."""
    scores = {
        text: score + options.lm_weight * language(text) + options.word_score * len(text.split())
        for text, score in text_scores(log_probs, options.sum_paths).items()
        if allowed(text)
    }
    return max(scores, key=lambda text: scores[text])


def test_best_path_is_the_best_of_all_paths() -> None:
    log_probs = torch.stack([random_scores(5, seed) for seed in range(20)], dim=1)
    lengths = torch.tensor([5, 4, 3, 2, 1] * 4)
    decoded = best_paths(log_probs, lengths)
    assert len(decoded) == 20
    for line, length in enumerate(lengths.tolist()):
        every = itertools.product(range(4), repeat=length)
        best = max(every, key=lambda p: sum(log_probs[t, line, o] for t, o in enumerate(p)))
        assert decoded[line] == collapse(list(best))


WEIGHTS = pytest.mark.parametrize("lm_weight", [0.0, 0.7, 2.0])
PATHS = pytest.mark.parametrize("sum_paths", [False, True])


@WEIGHTS
@PATHS
def test_character_beam_finds_the_best_text(lm_weight: float, sum_paths: bool) -> None:
    options = BeamOptions(lm_weight=lm_weight, sum_paths=sum_paths, **EXACT)
    beam = CharacterBeam(ALPHABET, TEXTS, options)

    def language(text: str) -> float:
        return beam.bigram.sequence_log_prob(["<space>" if c == " " else c for c in text])

    for seed in range(6):
        log_probs = random_scores(5, seed)
        assert beam.decode(log_probs) == best_text(log_probs, options, language)


@WEIGHTS
@PATHS
@pytest.mark.parametrize("word_score", [0.0, -1.0])
def test_word_beam_finds_the_best_text(
    lm_weight: float, sum_paths: bool, word_score: float
) -> None:
    options = BeamOptions(lm_weight=lm_weight, sum_paths=sum_paths, word_score=word_score, **EXACT)
    beam = WordBeam(ALPHABET, TEXTS, options)

    def language(text: str) -> float:
        return beam.bigram.sequence_log_prob(text.split())

    def allowed(text: str) -> bool:
        return " ".join(text.split()) == text and set(text.split()) <= set(beam.bigram.units)

    for seed in range(6):
        log_probs = random_scores(5, seed)
        log_probs[:, 3] -= 3  # few spaces, because this decoder may repeat them
        assert beam.decode(log_probs) == best_text(log_probs, options, language, allowed)
