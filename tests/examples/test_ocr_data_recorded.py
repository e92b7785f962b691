"""Recorded lines that the project does not carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.ocr.data_module import TextLines


def _recorded(data_root: Path, name: str) -> str:
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name} in {data_root}")
    return str(data_root / name)


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("name", "sizes", "alphabet"),
    [
        pytest.param("oldbooks", [3567, 447, 707], "keyboard", marks=pytest.mark.slow),
        pytest.param("copiste", [2627, 580, 657], "corpus", marks=pytest.mark.slow),
        ("memorials", [486, 50, 74], "keyboard"),
    ],
)
def test_all_lines_are_read(
    data_root: Path, tmp_path: Path, name: str, sizes: list[int], alphabet: str
) -> None:
    data = TextLines(
        "manifest",
        {"path": _recorded(data_root, name)},
        height=24,
        alphabet=alphabet,
        pixels_per_frame=1,
        cache_dir=str(tmp_path),
    )
    assert [len(split) for split in data.corpus.splits.values()] == sizes
    assert not data.too_long
    assert len(data.alphabet) == {"copiste": 131}.get(name, 96)
    paper = [np.median(line.image) for line in data.train]
    assert min(paper) > 200
    # The faintest are in pencil.
    assert all(int(line.image.max()) - int(line.image.min()) > 30 for line in data.train)


@pytest.mark.needs_data
def test_a_small_study_takes_few_narrow_lines(data_root: Path, tmp_path: Path) -> None:
    data = TextLines(
        "manifest",
        {
            "path": _recorded(data_root, "oldbooks"),
            "max_lines": 200,
            "max_width": 400,
            "max_eval_lines": 40,
        },
        height=24,
        cache_dir=str(tmp_path),
    )
    assert [len(split) for split in data.corpus.splits.values()] == [200, 40, 40]
    assert max(line.width for line in data.train) <= 400
    # Evenly spread: lines of all six books of the split.
    assert {Path(line.key).name[0] for line in data.train} == set("abceh") | {"j"}


@pytest.mark.needs_data
def test_french_handwriting_without_accents(data_root: Path, tmp_path: Path) -> None:
    data = TextLines(
        "manifest",
        {"path": _recorded(data_root, "copiste"), "max_lines": 300, "max_eval_lines": 50},
        height=24,
        cache_dir=str(tmp_path),
    )
    assert len(data.alphabet) == 96
    batch = next(iter(data.train_dataloader()))
    assert batch.targets.max() < 96
