"""Tests of the language example's data: corpora, tokens, windows, batches of ranks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.language.corpus import tokenise
from examples.language.documents import SPLITS, folder_documents, split_of
from examples.language.vocabulary import BPEVocabulary, ByteVocabulary
from examples.language.windows import IGNORED, WindowDataset
from tests.examples.language_texts import write_texts


def test_names_are_divided_in_shares_and_the_same_each_time() -> None:
    counts = Counter(split_of(f"package/module{number}.py") for number in range(4000))
    assert counts["train"] == pytest.approx(3600, abs=60)
    assert counts["valid"] == pytest.approx(200, abs=50)
    assert counts["test"] == pytest.approx(200, abs=50)
    assert [split_of(name) for name in ("abc.py", "json/decoder.py")] == ["train", "train"]


def test_folder_is_divided_or_is_the_test_split(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts")
    documents = folder_documents(path=str(root)).read()
    assert {split: len(texts) for split, texts in documents.items()} == Counter(
        split_of(file.name) for file in root.iterdir()
    )
    every = Counter(text for texts in documents.values() for text in texts)
    assert every == Counter(file.read_text(encoding="utf-8") for file in root.iterdir())
    assert max(every.values()) == 1
    assert documents == folder_documents(path=str(root)).read()
    separate = folder_documents(test_path=str(root)).read()
    assert [len(separate[split]) for split in SPLITS] == [0, 0, 60]


@pytest.fixture(scope="module")
def bpe() -> BPEVocabulary:
    texts = ["the gradient of a block\r\n\tis sent — für größere"] * 20
    return BPEVocabulary.train(texts, size=280)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_bpe_tokens_stand_for_all_bytes_of_any_text(bpe: BPEVocabulary, text: str) -> None:
    tokens = bpe.encode(text)
    assert bpe.token_bytes[tokens].sum() == len(text.encode())


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_tokens_come_from_the_cache(
    tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_texts(tmp_path / "texts")
    documents = folder_documents(path=str(root))
    options: dict[str, Any] = {"tokenizer": tokenizer, "vocabulary_size": 300}
    first = tokenise(documents, **options, cache_dir=tmp_path / "cache")
    fresh = tokenise(documents, **options)
    monkeypatch.setattr(BPEVocabulary, "encode", None)
    monkeypatch.setattr(ByteVocabulary, "encode", None)
    read = tokenise(documents, **options, cache_dir=tmp_path / "cache")
    for split in SPLITS:
        tokens = read.splits[split]
        for other in (first, fresh):
            assert np.array_equal(tokens, other.splits[split])
        ends = tokens == read.vocabulary.end
        assert ends.sum() == len(documents.read()[split]) and ends[-1]
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 1


@given(number=st.integers(0, 150), context=st.integers(1, 20))
def test_every_token_is_the_target_of_one_window(number: int, context: int) -> None:
    tokens = np.arange(number, dtype=np.uint16)
    lengths = np.arange(1000)
    dataset = WindowDataset(tokens, context=context, end=999, token_bytes=lengths)
    if not len(tokens):
        assert len(dataset) == 0
        return
    batch = dataset[tuple(range(len(dataset)))]
    assert batch.inputs.shape == batch.targets.shape == (len(dataset), context)
    counted = batch.targets != IGNORED
    assert batch.targets[counted].tolist() == tokens.tolist()
    assert batch.inputs[counted].tolist() == [999, *tokens.tolist()][:-1]
    assert batch.bytes.sum() == tokens.sum() and batch.inputs.min() >= 0
    assert batch.bytes.tolist() == [int(row[row >= 0].sum()) for row in batch.targets]
