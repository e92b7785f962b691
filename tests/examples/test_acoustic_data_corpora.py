"""Tests of AN4 and of manifests of audio files, with generated and with recorded data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from examples.acoustic.corpora.an4 import build_an4_corpus
from examples.acoustic.corpora.manifest import build_manifest_corpus, read_manifest
from examples.acoustic.corpora.pronunciation import lexicon_for
from tests.examples.manifests import SPLITS, write_manifest


def _tone(seconds: float, rate_hz: int) -> np.ndarray:
    time = np.arange(int(seconds * rate_hz)) / rate_hz
    return (0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


@pytest.fixture
def audio_folder(tmp_path: Path) -> Path:
    """Six files: both formats, two rates, mono and stereo."""
    entries = []
    for number in range(6):
        rate_hz = (8000, 16_000, 44_100)[number % 3]
        name = f"{number}.{'flac' if number % 2 else 'wav'}"
        samples = _tone(0.5 + 0.1 * number, rate_hz)
        stereo = np.stack([samples, samples], 1) if number == 4 else samples
        soundfile.write(tmp_path / name, stereo, rate_hz)
        text = f"Hello, {'red' if number % 2 else 'blue'} world!"
        entries.append({"path": name, "text": text, "split": SPLITS[number // 2]})
    write_manifest(tmp_path, entries)
    return tmp_path


def test_manifest_reads_formats_and_rates(audio_folder: Path) -> None:
    corpus = build_manifest_corpus(path=audio_folder, lexicon="graphemes", normalisation="none")
    assert [len(split) for split in corpus.splits.values()] == [2, 2, 2]
    assert corpus.train[0].words == ("hello", "blue", "world")
    assert corpus.train[0].senones is None
    for split in corpus.splits.values():
        for utterance in split:
            number = int(utterance.key[0])
            assert len(corpus.recorded[utterance.key]) == pytest.approx(50 + 10 * number, abs=1)
    # The tone is the same at all rates and in all formats, so the loudest filter is the same.
    loudest = {int(features.mean(0).argmax()) for features in corpus.recorded.values()}
    assert len(loudest) == 1


def test_every_unreadable_file_is_listed(audio_folder: Path) -> None:
    (audio_folder / "1.flac").write_bytes(b"no sound")
    (audio_folder / "2.wav").unlink()
    soundfile.write(audio_folder / "3.flac", _tone(0.01, 16_000), 16_000)
    with pytest.raises(ValueError) as error:
        build_manifest_corpus(path=audio_folder, lexicon="graphemes")
    message = str(error.value)
    assert message.startswith("3 recordings in")
    assert all(name in message for name in ("1.flac:", "2.wav:", "3.flac:"))
    assert "at least 400 samples" in message


def test_samples_that_are_not_finite_are_refused(audio_folder: Path) -> None:
    samples = _tone(0.5, 16_000)
    samples[100] = np.nan
    soundfile.write(audio_folder / "0.wav", samples, 16_000, subtype="FLOAT")
    with pytest.raises(ValueError, match=r"0\.wav: samples that are not finite"):
        build_manifest_corpus(path=audio_folder, lexicon="graphemes")


def test_manifest_lines_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text(
        '{"path": "a", "text": "b", "split": "train"}\nnot json\n[1]\n'
        '{"path": "a", "split": "train"}\n{"path": "a", "text": "b", "split": "dev"}\n'
    )
    with pytest.raises(ValueError) as error:
        read_manifest(path)
    message = str(error.value)
    assert message.startswith("4 lines of")
    assert all(f"line {number}:" in message for number in (2, 3, 4, 5))
    path.write_text("\n")
    with pytest.raises(ValueError, match="lists no utterance"):
        read_manifest(path)


def test_lexicon_sources(tmp_path: Path) -> None:
    assert lexicon_for(["ab"], "graphemes").pronunciations("ab") == [("a", "b")]
    assert lexicon_for(["red"], "espeak").pronunciations("red") == [("r", "E", "d")]
    dictionary = tmp_path / "words.dic"
    dictionary.write_text("red  R EH D\n")
    assert lexicon_for(["red"], str(dictionary)).pronunciations("red") == [("R", "EH", "D")]
    with pytest.raises(KeyError, match="blue"):
        lexicon_for(["red", "blue"], str(dictionary))
    with pytest.raises(FileNotFoundError, match="'espeak', 'graphemes' or the path"):
        lexicon_for(["red"], "nowhere.dic")


def _small_an4(folder: Path) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(0)
    entries = [
        {"path": f"u{n}", "text": "YES NO", "split": SPLITS[n % 3], "speaker": f"s{n % 2}"}
        for n in range(6)
    ]
    np.savez(
        folder / "an4_mfcc.npz",
        **{e["path"]: draw.normal(3, 2, (90, 13)).astype(np.float16) for e in entries},
    )
    write_manifest(folder, entries)
    (folder / "an4.dic").write_text("YES  Y EH S\nNO  N OW\n")
    return folder


def test_an4_dimensions_and_flat_start(tmp_path: Path) -> None:
    folder = _small_an4(tmp_path / "an4")
    plain = build_an4_corpus(path=folder)
    assert plain.feature_dim == 39 and plain.train[0].senones is None
    deltas = build_an4_corpus(path=folder, stack=5, delta_orders=2, flat_start=True)
    assert deltas.feature_dim == 5 * 39
    utterance = deltas.train[0]
    assert utterance.words == ("YES", "NO")
    assert utterance.senones is not None and utterance.senones.shape == (30,)
    assert deltas.senones.name(int(utterance.senones[0])) == "sil.1"
    # Features are normalised for each speaker, whose frames then have mean 0.
    keys = [u.key for split in plain.splits.values() for u in split if u.speaker == "s1"]
    frames = torch.cat([plain.recorded[key] for key in keys])
    torch.testing.assert_close(frames.mean(0), torch.zeros(13), atol=1e-3, rtol=0)
