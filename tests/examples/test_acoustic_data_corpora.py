"""Tests of AN4 with generated data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from examples.acoustic.corpora.an4 import build_an4_corpus
from tests.examples.manifests import SPLITS, write_manifest


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


def test_an4_dimensions_and_normalisation(tmp_path: Path) -> None:
    folder = _small_an4(tmp_path / "an4")
    plain = build_an4_corpus(path=folder)
    assert plain.feature_dim == 39 and plain.train[0].senones is None
    deltas = build_an4_corpus(path=folder, stack=5, delta_orders=2)
    assert deltas.feature_dim == 5 * 39
    assert deltas.train[0].words == ("YES", "NO") and deltas.train[0].features.shape == (30, 195)
    # Features are normalised for each speaker, whose frames then have mean 0.
    keys = [u.key for split in plain.splits.values() for u in split if u.speaker == "s1"]
    frames = torch.cat([plain.recorded[key] for key in keys])
    torch.testing.assert_close(frames.mean(0), torch.zeros(13), atol=1e-3, rtol=0)


def test_a_wrong_line_of_the_manifest_is_named(tmp_path: Path) -> None:
    folder = _small_an4(tmp_path / "an4")
    with (folder / "manifest.jsonl").open("a") as file:
        file.write('{"path": "a", "text": "b", "split": "dev"}\n')
    with pytest.raises(ValueError, match="manifest.jsonl:7: a line gives path, text and split"):
        build_an4_corpus(path=folder)
