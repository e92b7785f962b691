"""Results, one line of JSON each: a command that was cut off goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Store:
    """A file of lines; each has a ``key`` by which it is found again.

    Args:
        path: made with its folder when the first line is added.

    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        """All that are whole: the last one may have been cut off.

        Raises:
            ValueError: a line before the last can't be read.

        """
        return list(self._read()) if self._path.exists() else []

    def _read(self) -> Iterator[Line]:
        rows = self._path.read_text().splitlines()
        for number, row in enumerate(rows, start=1):
            try:
                yield json.loads(row)
            except json.JSONDecodeError:
                if number < len(rows):
                    raise ValueError(
                        f"{self._path}, line {number} is no JSON: remove it, or take another file"
                    ) from None

    def __contains__(self, key: str) -> bool:
        """Whether a line of this key is there."""
        return any(line["key"] == key for line in self.lines())

    def add(self, key: str, line: Line) -> None:
        """Keep a line; it is on the disk when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as file:
            file.seek(0)
            whole = file.read()
            if whole and not whole.endswith("\n"):
                file.truncate(len(whole[: whole.rfind("\n") + 1].encode()))
            file.write(json.dumps({"key": key, **line}) + "\n")
