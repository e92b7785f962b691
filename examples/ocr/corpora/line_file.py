"""An entry of a listing of text lines."""

from __future__ import annotations

from typing import NamedTuple


class LineFile(NamedTuple):
    """A line of a listing, whose image has not been read yet.

    Attributes:
        key: path of the image in the directory or zip file.
        text: reference text.
        split: ``"train"``, ``"valid"`` or ``"test"``.
    """

    key: str
    text: str
    split: str
