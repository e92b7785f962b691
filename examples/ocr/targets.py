"""Normalisation of texts, and exclusion of lines whose texts need too many frames."""

from __future__ import annotations

import logging
from dataclasses import replace

from lightning.pytorch.utilities import rank_zero_only

from examples.ocr.alphabet import Alphabet
from examples.ocr.corpus import Corpus
from examples.ocr.line import Line, frames_needed
from examples.ocr.unreadable import OnUnreadable, Problem, list_problems, report_problems

log = logging.getLogger(__name__)


def normalise_texts(alphabet: Alphabet, corpus: Corpus, on_unreadable: OnUnreadable) -> Corpus:
    """Return the corpus with all texts normalised by ``Alphabet.normalise``.

    Raises:
        ValueError: if normalised texts contain characters outside the alphabet and
            ``on_unreadable`` is ``"error"``, or no line of a split is left.
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
    report_problems(problems, on_unreadable, f"corpus {corpus.name}")
    return _remaining_corpus(splits, corpus)


def exclude_too_long(
    alphabet: Alphabet, corpus: Corpus, pixels_per_frame: int
) -> tuple[Corpus, list[Problem]]:
    """Exclude lines whose texts need more frames than the lines have, with a warning.

    The CTC loss of such lines would be infinite. A line has ceil(width / ``pixels_per_frame``)
    frames.

    Returns:
        The corpus without these lines, and the names of these lines with the reasons.

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
            list_problems(too_long),
        )
    return _remaining_corpus(splits, corpus), too_long


def _remaining_corpus(splits: dict[str, list[Line]], before: Corpus) -> Corpus:
    """Return a corpus with the name of ``before`` and the remaining lines.

    Raises:
        ValueError: if no line of a split is left.
    """
    for split, lines in before.splits.items():
        if lines and not splits[split]:
            raise ValueError(
                f"none of the {len(lines)} {split} lines of corpus {before.name} can be used"
            )
    return Corpus(name=before.name, **splits)
