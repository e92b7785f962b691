"""Folders of text files."""

from __future__ import annotations

from pathlib import Path

from examples.language.documents import SPLITS, Documents, split_of


def build_folder_documents(
    *,
    path: str | None = None,
    train_path: str | None = None,
    valid_path: str | None = None,
    test_path: str | None = None,
    pattern: str = "**/*.txt",
) -> Documents:
    """Return the text files of folders as documents. Files must be in UTF-8.

    A hash of the file names divides the files of ``path`` into 90% train, 5% valid and 5% test.
    Alternatively, each split has its own folder. Splits without a folder are empty, so
    ``test_path`` is sufficient to test a model.

    Args:
        path: folder that is divided.
        train_path, valid_path, test_path: folders of the splits, instead of ``path``.
        pattern: pattern of the files in a folder, as in ``pathlib.Path.glob``.

    Raises:
        FileNotFoundError: a folder does not exist or has no matching file.
        ValueError: both or neither of ``path`` and the folders of splits are given, or a file is
            not UTF-8 (raised when it is read).

    """
    folders = {"train": train_path, "valid": valid_path, "test": test_path}
    given = {split: folder for split, folder in folders.items() if folder is not None}
    if (path is None) == (not given):
        raise ValueError(
            "the folder corpus takes either path or some of train_path, valid_path and test_path, "
            f"got path={path!r} and {given}"
        )
    files: dict[str, list[Path]] = {split: [] for split in SPLITS}
    if path is not None:
        for file in _find(path, pattern):
            files[split_of(file.relative_to(path).as_posix())].append(file)
    for split, folder in given.items():
        files[split] = _find(folder, pattern)
    state = {
        split: [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in of_split]
        for split, of_split in files.items()
    }
    return Documents(
        name="folder",
        state=state,
        read=lambda: {split: list(map(_read, of_split)) for split, of_split in files.items()},
    )


def _find(folder: str, pattern: str) -> list[Path]:
    files = sorted(file for file in Path(folder).glob(pattern) if file.is_file())
    if not files:
        raise FileNotFoundError(f"no file {pattern} in {folder!r}; see path and pattern")
    return files


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()  # read_text would change line ends
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} must be text in UTF-8: {error}; convert it, or exclude it by pattern"
        ) from error
