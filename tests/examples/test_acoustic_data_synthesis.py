"""Tests of the synthetic corpus: it is deterministic, and comes from its cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.acoustic.corpora import synthesis
from examples.acoustic.corpora.synthesis import (
    SynthesisConfig,
    build_synthetic_corpus,
)
from examples.acoustic.corpus import Corpus

SMALL = {"sentences": 40, "seed": 3, "valid_fraction": 0.2, "test_fraction": 0.2}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return build_synthetic_corpus(**SMALL)


def test_cache_gives_the_same_corpus_without_synthesis(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_synthetic_corpus(**SMALL, cache_dir=tmp_path)

    def refuse(config: SynthesisConfig) -> Iterator[None]:
        raise AssertionError("the corpus should have come from the cache")

    monkeypatch.setattr(synthesis, "synthesise", refuse)
    cached = build_synthetic_corpus(**SMALL, cache_dir=tmp_path)
    for first, second in zip(corpus.test, cached.test, strict=True):
        assert replace(first, features=second.features, senones=None) == replace(
            second, senones=None
        )
        assert torch.equal(first.features, second.features)
        assert torch.equal(first.senones, second.senones)
    with pytest.raises(AssertionError, match="from the cache"):
        build_synthetic_corpus(**{**SMALL, "seed": 9}, cache_dir=tmp_path)
    assert not list(tmp_path.glob("*.partial"))
