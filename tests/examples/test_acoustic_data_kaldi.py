"""Tests of Kaldi data directories: archives, alignments, and input that must not be executed."""

from __future__ import annotations

import pickle
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


def test_kaldi_mistakes_are_named(kaldi_folder: Path) -> None:
    splits = _splits(kaldi_folder)
    with pytest.raises(ValueError, match="9 pdfs, 3 phones of 1 states have 3"):
        build_kaldi_corpus(
            **splits,
            alignments=kaldi_folder,
            phones=kaldi_folder / "phones",
            states_per_phone=1,
        )
    kaldiio.save_ark(str(kaldi_folder / "bad.ark"), {"train-0": np.zeros(5, np.int32)})
    with pytest.raises(ValueError, match="train-0 has 20 frames .* and 5 in its alignment"):
        build_kaldi_corpus(**splits, alignments=kaldi_folder / "bad.ark")


@pytest.mark.parametrize(
    "place",
    [
        "touch MARK |",
        "| touch MARK",
        # kaldiio treats these as commands, although they do not end with a bar.
        "x; touch MARK |:5",
        "x; touch MARK |[0:1]",
        "x; touch MARK |:5[0:1]",
        "x; touch MARK | ",
    ],
)
def test_commands_in_tables_are_not_run(kaldi_folder: Path, place: str) -> None:
    mark = kaldi_folder / "run"
    scp = kaldi_folder / "train" / "feats.scp"
    scp.write_text(f"train-0 {place.replace('MARK', str(mark))}\n")
    with pytest.raises(ValueError, match="commands in tables are not run"):
        build_kaldi_corpus(**_splits(kaldi_folder))
    assert not mark.exists()


class _Code:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_pickles_in_archives_are_not_read(kaldi_folder: Path) -> None:
    mark = kaldi_folder / "run"
    archive = kaldi_folder / "train" / "evil.ark"
    archive.write_bytes(b"train-0 PKL" + pickle.dumps(_Code(mark)))
    with pytest.raises(ValueError, match="evil.ark has something that begins with b'PK'"):
        build_kaldi_corpus(**_splits(kaldi_folder), alignments=archive)
    (kaldi_folder / "train" / "feats.scp").write_text("train-0 evil.ark:8\n")
    with pytest.raises(ValueError, match="pickles and sounds are not read"):
        build_kaldi_corpus(**_splits(kaldi_folder))
    assert not mark.exists()
