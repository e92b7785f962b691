"""Tests of reading files from folders and zip archives."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from examples import file_source
from examples.file_source import FileSource


def test_files_are_read_from_folders_and_zips(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(tmp_path / "one", "one")
    for path in (tmp_path, tmp_path / "all.zip"):
        source = FileSource(path, "images")
        assert source.read("one") == b"1"
        with pytest.raises((OSError, KeyError)):
            source.read("two")
    with pytest.raises(ValueError, match="images must be a folder or a zip file, got .*one"):
        FileSource(tmp_path / "one", "images")


@pytest.mark.parametrize("packed", [True, False])
def test_file_that_would_fill_the_memory_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(file_source, "MAX_BYTES", 10_000)
    (tmp_path / "bomb").write_bytes(bytes(10_001))
    with zipfile.ZipFile(tmp_path / "small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "bomb", "bomb")
    assert (tmp_path / "small.zip").stat().st_size < 1000
    source = FileSource(tmp_path / "small.zip" if packed else tmp_path, "images")
    with pytest.raises(ValueError, match="10001 bytes, more than the 10000"):
        source.read("bomb")
