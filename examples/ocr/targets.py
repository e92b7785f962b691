"""Texts that the alphabet can write and the model has room for."""

from __future__ import annotations

import logging
from dataclasses import replace

from lightning.pytorch.utilities import rank_zero_only

from examples.ocr.alphabet import Alphabet
from examples.ocr.corpus import Corpus
from examples.ocr.line import Line, frames_needed
from examples.ocr.unreadable import OnUnreadable, Problem, listed, settle

log = logging.getLogger(__name__)


def written_with(alphabet: Alphabet, corpus: Corpus, on_unreadable: OnUnreadable) -> Corpus:
    """Write all texts with the alphabet (``Alphabet.normalise``).

    Raises:
        ValueError: if texts cannot be written with it and shall not be skipped, or no line of a
            split is left.
    """
    problems: list[Problem] = []
    splits: dict[str, list[Line]] = {}
    for split, lines in corpus.splits.items():
        splits[split] = []
        for line in lines:
            text = alphabet.normalise(line.text)
            try:
                alphabet.encode(text)
            except ValueError as error:
                problems.append((f"{split}: {line.key}", str(error)))
                continue
            splits[split].append(replace(line, text=text))
    settle(problems, on_unreadable, f"corpus {corpus.name}")
    return _corpus_of(splits, corpus)


def with_room(
    alphabet: Alphabet, corpus: Corpus, pixels_per_frame: int
) -> tuple[Corpus, list[Problem]]:
    """Leave out lines whose texts need more outputs than the model has for their width.

    CTC's loss is infinite for them. A model has one output for each ``pixels_per_frame`` pixels
    that the line begins.

    Returns:
        The corpus without these lines, and their names with the reason; a warning names the first.

    Raises:
        ValueError: if no line of a split is left.
    """
    splits: dict[str, list[Line]] = {}
    too_long: list[Problem] = []
    for split, lines in corpus.splits.items():
        splits[split] = []
        for line in lines:
            needed = frames_needed(alphabet.encode(line.text))
            frames = -(-line.width // pixels_per_frame)
            if needed <= frames:
                splits[split].append(line)
            else:
                reason = f"CTC needs {needed} outputs, {line.width} pixels give {frames}"
                too_long.append((f"{split}: {line.key}", reason))
    if too_long:
        rank_zero_only(log.warning)(
            "%d of %d lines left out of corpus %s, too narrow for their texts at %d pixels per "
            "output:%s",
            len(too_long),
            sum(map(len, corpus.splits.values())),
            corpus.name,
            pixels_per_frame,
            listed(too_long),
        )
    return _corpus_of(splits, corpus), too_long


def _corpus_of(splits: dict[str, list[Line]], before: Corpus) -> Corpus:
    """The corpus of the lines that are left.

    Raises:
        ValueError: if no line of a split is left.
    """
    for split, lines in before.splits.items():
        if lines and not splits[split]:
            raise ValueError(
                f"none of the {len(lines)} {split} lines of corpus {before.name} can be used"
            )
    return Corpus(name=before.name, **splits)
