"""Tests of the language example's shards: the format, the command that writes them, the corpus."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from examples.language.corpora.folder import build_folder_documents
from examples.language.corpora.shards import build_shards_corpus
from examples.language.corpus import tokenise
from examples.language.data_module import Text
from examples.language.documents import SPLITS
from examples.language.shards import map_shard, write_shard
from examples.language.write_shards import main, write_corpus
from tests.examples.language_texts import small_data, write_texts

HEADER = 24


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_shards_are_mapped_as_they_were_written(tmp_path: Path, dtype: type) -> None:
    tokens: np.ndarray = (
        np.random.default_rng(0).integers(0, np.iinfo(dtype).max, 1000).astype(dtype)
    )
    path = tmp_path / "a.bin"
    write_shard(path, tokens)
    mapped = map_shard(path)
    assert isinstance(mapped, np.memmap) and mapped.dtype == dtype
    assert np.array_equal(mapped, tokens)
    # The format of the table in the module's docstring.
    content = path.read_bytes()
    code = np.dtype(dtype).itemsize
    assert content[:HEADER] == b"LHTOKENS" + struct.pack("<IIQ", 1, code, 1000)
    assert content[HEADER:] == tokens.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    write_shard(path, tokens[:0])
    assert len(map_shard(path)) == 0
    for wrong in (tokens.astype(np.int64), tokens.reshape(10, 100)):
        with pytest.raises(ValueError, match=r"must be \(N,\) uint16 or uint32"):
            write_shard(path, wrong)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must begin with b'LHTOKENS'"),
        (b"OTHER" + bytes(60), "it begins with b'OTHER"),
        (b"LHTOKENS" + struct.pack("<IIQ", 2, 2, 0), "must have version 1 of the format, got 2"),
        (b"LHTOKENS" + struct.pack("<IIQ", 1, 8, 0), r"2 \(uint16\) or 4 \(uint32\), got 8"),
        (b"LHTOKENS" + struct.pack("<IIQ", 1, 2, 9) + bytes(17), "must have 42 bytes .* got 41"),
    ],
)
def test_damaged_shards_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"bad\.bin .*{message}"):
        map_shard(path)


def test_written_corpus_is_read_as_shards(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "texts")
    corpus = tokenise(build_folder_documents(path=str(root)), tokenizer="bpe", vocabulary_size=300)
    files = write_corpus(corpus, tmp_path / "shards", shard_tokens=500)
    assert len([file for file in files if file.name.startswith("train")]) > 1
    mapped = build_shards_corpus(
        train=[str(tmp_path / "shards" / "train_*.bin")],
        valid=[str(tmp_path / "shards" / "valid_00000.bin")],
        tokenizer=str(tmp_path / "shards" / "tokenizer.json"),
    )
    for split in ("train", "valid"):
        wanted = corpus.splits[split].read(0, 10**9)
        assert np.array_equal(mapped.splits[split].read(0, 10**9), wanted)
    assert len(mapped.splits["test"]) == 0
    assert np.array_equal(mapped.vocabulary.token_bytes, corpus.vocabulary.token_bytes)


def test_shards_command_writes_what_the_data_module_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_texts(tmp_path / "texts")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    main([f"--out={tmp_path}/shards", f"--path={root}", "--tokenizer=bytes"])
    printed = capsys.readouterr().out
    assert "3 shards" in printed and "tokens of 257" in printed
    paths = {split: [f"{tmp_path}/shards/{split}_*.bin"] for split in SPLITS}
    data = Text("shards", {**paths, "tokenizer": "bytes"}, context=16, batch_windows=4)
    other = small_data(root, batch_windows=4)
    for one, two in zip(data.val_dataloader(), other.val_dataloader(), strict=True):
        assert all(map(np.array_equal, one, two))
    with pytest.raises(SystemExit, match="no file"):
        main([f"--out={tmp_path}/shards", f"--path={tmp_path}/nothing"])
