"""File of results, one line of JSON each, so that an interrupted command can continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Store:
    """File of JSON lines, each of which has a ``key``.

    Args:
        path: path of the file. It is created, with its folder, when the first line is added.

    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        """Return all lines, without an incomplete last one.

        Raises:
            ValueError: a line before the last one is not valid JSON.

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
                        f"{self._path}, line {number} is not JSON: remove it, or use another file"
                    ) from None

    def __contains__(self, key: str) -> bool:
        """Whether there is a line with this key."""
        return any(line["key"] == key for line in self.lines())

    def add(self, key: str, line: Line) -> None:
        """Append a line to the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as file:
            file.seek(0)
            text = file.read()
            if text and not text.endswith("\n"):
                file.truncate(len(text[: text.rfind("\n") + 1].encode()))
            file.write(json.dumps({"key": key, **line}) + "\n")
