"""A corpus of text lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from examples.ocr.line import Line

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text lines in up to three splits.

    Attributes:
        name: name of the corpus.
        train, valid, test: lines of each split, with images of one height. A split may be empty.

    Raises:
        ValueError: if all splits are empty, the keys of a split are not unique, or heights differ.
    """

    name: str
    train: list[Line]
    valid: list[Line]
    test: list[Line]

    def __post_init__(self) -> None:
        """Check the splits."""
        if not any(self.splits.values()):
            raise ValueError(f"corpus {self.name} has no lines in any split")
        for split, lines in self.splits.items():
            repeated = _repeated(line.key for line in lines)
            if repeated:
                raise ValueError(
                    f"keys must be unique in the split {split} of corpus {self.name}, found twice: "
                    f"{repeated[:10]}"
                )
        heights = {line.image.shape[0] for lines in self.splits.values() for line in lines}
        if len(heights) > 1:
            raise ValueError(
                f"all images of corpus {self.name} must have one height, got {sorted(heights)}"
            )

    @property
    def splits(self) -> dict[str, list[Line]]:
        """The three splits by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}


def _repeated(keys: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({key for key in keys if key in seen or seen.add(key)})  # type: ignore[func-returns-value]
