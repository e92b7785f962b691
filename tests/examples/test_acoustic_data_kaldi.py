"""Kaldi data directories."""

from __future__ import annotations

from pathlib import Path

import kaldiio
import numpy as np
import pytest

from examples.acoustic.corpora.kaldi import build_kaldi_corpus
from tests.examples.manifests import SPLITS


@pytest.fixture
def kaldi_folder(tmp_path: Path) -> Path:
    """Three splits of two utterances, with alignments in one archive."""
    draw = np.random.default_rng(0)
    ali: dict[str, np.ndarray] = {}
    for split in SPLITS:
        folder = tmp_path / split
        folder.mkdir()
        features = {f"{split}-{n}": draw.normal(size=(20 + n, 4)).astype("f") for n in range(2)}
        kaldiio.save_ark(str(folder / "feats.ark"), features, scp=str(folder / "feats.scp"))
        (folder / "text").write_text("".join(f"{key} no yes\n" for key in features))
        (folder / "utt2spk").write_text("".join(f"{key} speaker-{key}\n" for key in features))
        ali |= {key: draw.integers(0, 9, len(m)).astype(np.int32) for key, m in features.items()}
    kaldiio.save_ark(str(tmp_path / "ali.1.ark"), ali, scp=str(tmp_path / "ali.scp"))
    (tmp_path / "phones").write_text("sil\nN\nY\n")
    return tmp_path


def _splits(folder: Path) -> dict[str, Path]:
    return {split: folder / split for split in SPLITS}


def test_kaldi_directories(kaldi_folder: Path) -> None:
    corpora = [
        build_kaldi_corpus(**_splits(kaldi_folder), alignments=alignments, **phones)
        for alignments, phones in (
            (kaldi_folder / "ali.scp", {}),
            (kaldi_folder, {"phones": kaldi_folder / "phones"}),
        )
    ]
    pdfs = kaldiio.load_scp(str(kaldi_folder / "ali.scp"))
    for corpus in corpora:
        assert corpus.feature_dim == 12
        assert corpus.train[1].speaker == "speaker-train-1"
        assert corpus.train[0].words == ("no", "yes")
        for utterance in corpus.test:
            assert utterance.senones.tolist() == pdfs[utterance.key][1::3].tolist()
    assert corpora[0].senones.states_per_phone == 1
    assert corpora[0].senones.name(4) == "pdf-4.1"
    assert corpora[1].senones.name(4) == "N.2"


def test_kaldi_archives_are_found_from_the_table(kaldi_folder: Path) -> None:
    for split in SPLITS:
        scp = kaldi_folder / split / "feats.scp"
        scp.write_text(scp.read_text().replace(f"{kaldi_folder / split}/", ""))
    corpus = build_kaldi_corpus(**_splits(kaldi_folder))
    assert corpus.train[0].senones is None and len(corpus.train) == 2


def test_kaldi_mistakes_are_named(kaldi_folder: Path) -> None:
    splits = _splits(kaldi_folder)
    with pytest.raises(ValueError, match="needs phones"):
        build_kaldi_corpus(**splits, flat_start=True)
    with pytest.raises(ValueError, match="9 pdfs, 3 phones of 1 states have 3"):
        build_kaldi_corpus(
            **splits,
            alignments=kaldi_folder,
            phones=kaldi_folder / "phones",
            states_per_phone=1,
        )
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
        build_kaldi_corpus(**splits, alignments=kaldi_folder / "train")
    kaldiio.save_ark(str(kaldi_folder / "bad.ark"), {"train-0": np.zeros(5, np.int32)})
    with pytest.raises(ValueError, match="train-0 has 20 frames .* and 5 in its alignment"):
        build_kaldi_corpus(**splits, alignments=kaldi_folder / "bad.ark")
    scp = kaldi_folder / "train" / "feats.scp"
    scp.write_text("train-0 echo hello |\n")
    with pytest.raises(ValueError, match="commands in tables are not run"):
        build_kaldi_corpus(**splits)
    (kaldi_folder / "train" / "text").unlink()
    with pytest.raises(FileNotFoundError, match="lacks text"):
        build_kaldi_corpus(**splits)
