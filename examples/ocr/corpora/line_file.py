"""A line of text as a listing has it."""

from __future__ import annotations

from typing import NamedTuple


class LineFile(NamedTuple):
    """A line that is listed: its key, which is also the image's name in its source, and its text.

    Attributes:
        key: path of the image in the folder or zip.
        text: what stands there.
        split: ``"train"``, ``"valid"`` or ``"test"``.
    """

    key: str
    text: str
    split: str
