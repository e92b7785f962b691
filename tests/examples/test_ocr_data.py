"""Tests of the text line example's data: characters, rendered lines, old books, augmentation."""

from __future__ import annotations

import json
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.ocr import old_books
from examples.ocr.alphabet import (
    BLANK,
    KEYBOARD,
    NUM_CLASSES,
    decode,
    encode,
    frames_needed,
    normalise,
)
from examples.ocr.data_module import TextLines
from examples.ocr.old_books import read_old_books
from tests.examples.line_images import save
from tests.examples.manifests import SPLITS, write_manifest

SMALL = {"train_lines": 9, "valid_lines": 3, "test_lines": 3}


def test_the_keyboard_has_95_characters_and_the_model_96_outputs() -> None:
    assert (KEYBOARD[0], KEYBOARD[-1], NUM_CLASSES) == (" ", "~", 96)
    assert encode(" ~") == [1, 95]


@given(st.text(st.sampled_from(KEYBOARD)))
def test_decoding_undoes_encoding_and_skips_padding(text: str) -> None:
    numbers = encode(text)
    assert BLANK not in numbers
    assert decode([*numbers, 0, 0]) == text
    assert frames_needed(numbers) == len(text) + sum(a == b for a, b in pairwise(text))


@pytest.mark.parametrize(
    ("written", "on_keyboard"),
    [
        ("“It’s”\u00a0 here\t– there — ‘so’", "\"It's\" here - there - 'so'"),
        ("ﬁnd the œuvre of Æsop", "find the oeuvre of AEsop"),
        ("21½ or ¾, 1⁄3", "21 1/2 or 3/4, 1/3"),
        ("Élève à Noël; e\u0301te\u0301", "Eleve a Noel; ete"),
        ("«Straße» … 5 m³", '"Strasse" ... 5 m3'),
        ("漢", "漢"),
    ],
)
def test_normalising_to_the_keyboard(written: str, on_keyboard: str) -> None:
    assert normalise(written) == on_keyboard


def test_augmentation_is_for_training_alone_and_repeats_itself_in_an_epoch() -> None:
    data = TextLines(corpus_args=SMALL, height=20, batch_lines=4, seed=1)
    data.setup("fit")
    for split, loader in (("valid", data.val_dataloader()), ("test", data.test_dataloader())):
        lines = sorted(data.splits[split], key=lambda line: line.width)
        batch = next(iter(loader))
        for row, line in enumerate(lines):
            assert decode(batch.targets[row].tolist()) == line.text
            ink = (255 - line.image.float()) / 255
            torch.testing.assert_close(batch.images[row, :, :, : line.width], ink)
            assert batch.images[row, :, :, line.width :].sum() == 0
    loader = data.train_dataloader()
    first, again = next(iter(loader)), next(iter(loader))
    assert torch.equal(first.images, again.images)
    loader.sampler.set_epoch(1)
    assert not any(first.images.shape == b.images.shape and torch.equal(first.images, b.images)
                   for b in loader)  # fmt: skip


def _old_books(folder: Path, texts: list[str]) -> list[dict]:
    entries = [
        {"path": f"png/{split}{i}.png", "text": text, "split": split}
        for split in SPLITS
        for i, text in enumerate(texts)
    ]
    for entry in entries:
        save(folder / entry["path"], width=40, height=20)
    write_manifest(folder, entries)
    return entries


def test_old_books_beside_a_folder_or_a_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = _old_books(tmp_path / "plain", ["été’", "ok"])
    plain = read_old_books(path=str(tmp_path / "plain"), height=10)
    assert [(line.key, line.text) for line in plain["valid"]] == [
        ("png/valid0.png", "ete'"),
        ("png/valid1.png", "ok"),
    ]
    assert plain["test"][1].image.shape == (1, 10, 20)
    (tmp_path / "packed").mkdir()
    with zipfile.ZipFile(tmp_path / "packed" / "lines.zip", "w") as archive:
        for entry in entries:
            archive.write(tmp_path / "plain" / entry["path"], entry["path"])
    write_manifest(tmp_path / "packed", entries)
    packed = read_old_books(path=str(tmp_path / "packed"), height=10)
    for one, other in zip(plain["test"], packed["test"], strict=True):
        assert torch.equal(one.image, other.image)
    monkeypatch.setattr(old_books, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="more than the 10 that a file may have"):
        read_old_books(path=str(tmp_path / "packed"), height=10)


@pytest.mark.parametrize("row", ['{"path": "png/train0.png"}', "nonsense", '{"path": "no.png"}'])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, row: str) -> None:
    entries = _old_books(tmp_path, ["ok"])
    with (tmp_path / "manifest.jsonl").open("a") as file:
        file.write(row + "\n" + json.dumps(entries[0]) + "\n")
    with pytest.raises(ValueError, match="row 4: "):
        read_old_books(path=str(tmp_path), height=10)


def test_lines_that_are_too_short_for_ctc_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 40 pixels give 10 outputs: enough for ten letters, not for six equal ones.
    _old_books(tmp_path, ["abcdefghij", "aaaaaa", "abcdefghijk", "ok"])
    data = TextLines("old_books", {"path": str(tmp_path)}, height=20)
    data.setup("fit")
    assert [line.text for line in data.splits["valid"]] == ["abcdefghij", "ok"]
    assert len(data.too_long) == 6 and data.too_long[0] == "png/train1.png"
    assert "6 of 12 lines left out" in caplog.text


def test_texts_outside_the_keyboard_are_named(tmp_path: Path) -> None:
    _old_books(tmp_path, ["漢"])
    with pytest.raises(ValueError, match="characters .*漢"):
        TextLines("old_books", {"path": str(tmp_path)}, height=20).setup("fit")
