"""Documents of text in three splits, before they are tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Where the documents of a corpus are, and how to read them.

    Attributes:
        name: of the corpus.
        state: all that the texts depend on, as JSON, so that changed files are not read from a
            cache. It is cheap to find: no text is read for it.
        read: reads the texts of each split, in a fixed order. Splits may be empty.
    """

    name: str
    state: Mapping[str, Any] = field(repr=False)
    read: Callable[[], dict[str, list[str]]] = field(repr=False)


def split_of(name: str) -> str:
    """The split of the file of this name: 90% of names in train, 5% each in valid and test.

    It depends on a hash of the name alone, so that more files do not move the others.
    """
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return {0: "valid", 1: "test"}.get(part, "train")
