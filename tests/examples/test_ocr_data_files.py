"""Tests of manifests, folders and IAM's layout, and of errors that name unreadable lines."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from examples.ocr.corpora.folder import build_folder_corpus
from examples.ocr.corpora.iam import build_iam_corpus
from examples.ocr.corpora.manifest import build_manifest_corpus
from tests.examples.line_images import save
from tests.examples.manifests import SPLITS, write_manifest


def _manifest(folder: Path, lines: int = 4) -> list[dict]:
    entries = [
        {"path": f"png/{split}{i}.png", "text": f"{split} {i}", "split": split}
        for split in SPLITS
        for i in range(lines)
    ]
    for number, entry in enumerate(entries):
        save(folder / entry["path"], width=60 + 10 * number, height=30, seed=number)
    write_manifest(folder, entries)
    return entries


def test_manifest_beside_a_folder_or_a_zip(tmp_path: Path) -> None:
    entries = _manifest(tmp_path / "plain")
    plain = build_manifest_corpus(path=tmp_path / "plain", height=24)
    assert plain.name == "plain"
    assert [(line.key, line.text) for line in plain.train] == [
        (entry["path"], entry["text"]) for entry in entries[:4]
    ]
    assert plain.train[1].image.shape == (24, 56)
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "packed" / "lines.zip", "w") as archive:
        for entry in entries:
            archive.write(tmp_path / "plain" / entry["path"], entry["path"])
    packed = write_manifest(tmp_path / "packed", entries)
    for corpus in (
        build_manifest_corpus(path=packed, height=24),
        build_manifest_corpus(path=packed, images=tmp_path / "plain", height=24),
    ):
        for one, other in zip(plain.test, corpus.test, strict=True):
            assert np.array_equal(one.image, other.image)


def test_unreadable_lines_stop_the_run_with_their_names(tmp_path: Path) -> None:
    entries = _manifest(tmp_path)
    (tmp_path / "png/train1.png").write_bytes(b"no image")
    (tmp_path / "png/valid0.png").unlink()
    data = (tmp_path / "png/test2.png").read_bytes()
    (tmp_path / "png/test2.png").write_bytes(data[:60])
    entries[2]["text"] = "  "
    path = write_manifest(tmp_path, entries)
    with path.open("a") as file:
        file.write('{"path": "x.png"}\nnonsense\n[1]\n')
        file.write(json.dumps({"path": "x.png", "text": "a", "split": "dev"}) + "\n")
    with pytest.raises(ValueError, match="8 lines of corpus") as caught:
        build_manifest_corpus(path=tmp_path)
    message = str(caught.value)
    for part in (
        "png/train1.png: cannot identify image file",
        "png/valid0.png: [Errno 2]",
        "png/test2.png: ",
        "png/train2.png: it has no text",
        "row 13: no string in text, split",
        "row 14: Expecting value",
        "row 15: it is not a JSON object",
        "row 16: split 'dev' is none of train, valid, test",
        "on_unreadable='skip'",
    ):
        assert part in message


def test_a_split_without_lines_is_empty_and_keys_are_unique(tmp_path: Path) -> None:
    entries = _manifest(tmp_path)
    write_manifest(tmp_path, entries[:8])
    assert not build_manifest_corpus(path=tmp_path).test
    write_manifest(tmp_path, [*entries, entries[0]])
    with pytest.raises(ValueError, match=r"found twice: \['png/train0.png'\]"):
        build_manifest_corpus(path=tmp_path)


def _pairs(folder: Path, count: int) -> None:
    for i in range(count):
        save(folder / f"{i:02d}.bin.png", seed=i)
        (folder / f"{i:02d}.gt.txt").write_text(f"line {i}\n", encoding="utf-8")


def test_folders_of_pairs_with_and_without_splits(tmp_path: Path) -> None:
    for count, split in enumerate(SPLITS, 1):
        _pairs(tmp_path / "split" / split / "book", count)
    corpus = build_folder_corpus(path=tmp_path / "split")
    assert [len(lines) for lines in corpus.splits.values()] == [1, 2, 3]
    assert corpus.valid[1].key == "valid/book/01.bin.png"
    assert corpus.valid[1].text.strip() == "line 1"
    _pairs(tmp_path / "flat", 60)
    flat = build_folder_corpus(path=tmp_path / "flat")
    sizes = [len(lines) for lines in flat.splits.values()]
    assert sum(sizes) == 60
    assert sizes[0] > 35
    _pairs(tmp_path / "flat", 70)
    more = build_folder_corpus(path=tmp_path / "flat")
    assert {line.key for line in flat.test} <= {line.key for line in more.test}


def _iam(root: Path) -> None:
    rows = ["#--- lines.txt ---"]
    for form, lines in (("a01-000u", 2), ("a01-003", 2), ("b02-013x", 3), ("c03-000a", 1)):
        for i in range(lines):
            name = f"{form}-{i:02d}"
            rows.append(f"{name} {'err' if i else 'ok'} 154 19 408 746 1661 89 A|line|,|no.|{i}|.")
            save(root / "lines" / form[:3] / form / f"{name}.png", seed=i)
    (root / "ascii").mkdir()
    (root / "ascii/lines.txt").write_text("\n".join(rows) + "\n")
    (root / "task").mkdir()
    for name, listed in (
        ("trainset", "a01-000u-00\na01-003\n"),
        ("validationset1", "b02-013x-00\n"),
        ("validationset2", "b02-013x-01\n"),
        ("testset", "b02-013x-02\n"),
    ):
        (root / "task" / f"{name}.txt").write_text(listed)


def test_iam(tmp_path: Path) -> None:
    _iam(tmp_path)
    corpus = build_iam_corpus(path=tmp_path)
    keys = {split: [line.key for line in lines] for split, lines in corpus.splits.items()}
    assert keys == {
        "train": [
            "a01/a01-000u/a01-000u-00.png",
            "a01/a01-003/a01-003-00.png",
            "a01/a01-003/a01-003-01.png",
        ],
        "valid": ["b02/b02-013x/b02-013x-00.png", "b02/b02-013x/b02-013x-01.png"],
        "test": ["b02/b02-013x/b02-013x-02.png"],
    }
    assert corpus.train[2].text == "A line , no. 1 ."
    joined = build_iam_corpus(path=tmp_path, partitions=tmp_path / "task", join_punctuation=True)
    assert joined.train[2].text == "A line, no. 1."
