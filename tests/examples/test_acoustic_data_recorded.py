"""Recorded corpora that the project does not carry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpora.manifest import build_manifest_corpus, read_manifest
from tests.examples.manifests import SPLITS, write_manifest


def _recorded(data_root: Path, name: str) -> Path:
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} in {data_root}")
    return data_root / name


@pytest.mark.needs_data
def test_recorded_an4(data_root: Path) -> None:
    corpus = build_an4_corpus(path=_recorded(data_root, "an4_mfcc"), flat_start=True)
    assert [len(split) for split in corpus.splits.values()] == [715, 78, 76]
    assert corpus.feature_dim == 39
    silence = set(corpus.senones.of("sil"))
    assert all(u.senones is not None and int(u.senones[0]) in silence for u in corpus.train)
    assert all(torch.isfinite(u.features).all() for u in corpus.train)


@pytest.mark.needs_data
def test_recorded_sentences(data_root: Path, tmp_path: Path) -> None:
    """A few of Kathleen's sentences, out of the zip."""
    entries = read_manifest(_recorded(data_root, "kathleen") / "manifest.jsonl")
    chosen = [next(e for e in entries if e["split"] == split) for split in SPLITS]
    corpus = build_manifest_corpus(
        path=write_manifest(tmp_path, chosen),
        audio=_recorded(data_root, "kathleen") / "kathleen.zip",
        flat_start=True,
    )
    read = [split[0] for split in corpus.splits.values()]
    for entry, utterance in zip(chosen, read, strict=True):
        assert len(utterance) * 0.03 == pytest.approx(entry["duration"], abs=0.04)
        assert utterance.speaker == "kathleen"


@pytest.mark.needs_data
def test_recorded_digits_at_two_rates(data_root: Path, tmp_path: Path) -> None:
    entries = read_manifest(_recorded(data_root, "fsdd") / "manifest.jsonl")
    chosen = [e for split in SPLITS for e in [x for x in entries if x["split"] == split][:5]]
    manifest = write_manifest(tmp_path, chosen)
    audio = _recorded(data_root, "fsdd") / "fsdd.zip"
    for rate_hz in (8000, 16_000):
        corpus = build_manifest_corpus(path=manifest, audio=audio, sample_rate_hz=rate_hz)
        assert corpus.train[0].words == ("zero",)
        assert "zero" in corpus.lexicon
        for entry, utterance in zip(chosen[:5], corpus.train, strict=True):
            assert len(utterance) * 0.03 == pytest.approx(entry["duration"], abs=0.04)
