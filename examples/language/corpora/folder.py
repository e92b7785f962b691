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
    """Read the text files of a folder, each of which is a document, in UTF-8.

    Either one folder is divided, by a hash of the files' names within it, into 90% train, 5% valid
    and 5% test, or each split has a folder of its own. Splits without a folder are empty: a model
    is tested with ``test_path`` alone.

    Args:
        path: the folder to divide.
        train_path, valid_path, test_path: folders of the splits, instead of ``path``.
        pattern: of the files below a folder, as in ``pathlib.Path.glob``.

    Raises:
        FileNotFoundError: a folder is missing or has no such file.
        ValueError: neither or both ways are used; or, when the files are read, one is not UTF-8.
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
    found = sorted(file for file in Path(folder).glob(pattern) if file.is_file())
    if not found:
        raise FileNotFoundError(f"no file {pattern} in {folder!r}; see path and pattern")
    return found


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()  # not read_text: line ends stay as they are
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} must be text in UTF-8: {error}; convert it, or leave it out by pattern"
        ) from error
