"""Documents of text in three splits, before tokenisation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The documents of a corpus. They are read on demand.

    Attributes:
        name: name of the corpus.
        state: versions of the source files, as JSON. It is the key of the cache, so that changed
            files are tokenised again. No text is read to compute it.
        read: function that reads the texts of each split, in a fixed order. Splits may be empty.

    """

    name: str
    state: Mapping[str, Any] = field(repr=False)
    read: Callable[[], dict[str, list[str]]] = field(repr=False)


def split_of(name: str) -> str:
    """Return the split of a file: 90% of the files are in train, 5% each in valid and test.

    The split depends only on a hash of ``name``, so it does not change when files are added.
    """
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 20
    return {0: "valid", 1: "test"}.get(part, "train")
