"""A smoothed 2-gram model over words or characters, and its ARPA file."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

BEGIN = "<s>"
END = "</s>"
UNKNOWN = "<unk>"


class Bigram:
    """Interpolated 2-gram model of Witten and Bell (1991, method C).

    With the counts c, and the number T(h) of different units after h::

        P(u | h) = (c(h, u) + T(h) P(u)) / (c(h) + T(h))

    The unigram P(u) is interpolated with the uniform distribution in the same way. The end of a
    sequence and the unknown unit are also units. The probabilities of all units after a history sum
    to one.

    Args:
        sequences: sequences of units, without the symbols for begin and end.
        vocabulary: additional units, which the sequences need not contain.

    Raises:
        ValueError: if there is no unit, or a unit is ``"<s>"`` or contains white space.
    """

    def __init__(self, sequences: Iterable[Sequence[str]], vocabulary: Iterable[str] = ()) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for units in sequences:
            if units:
                for history, unit in zip((BEGIN, *units), (*units, END), strict=True):
                    self._counts[history][unit] += 1
        if not self._counts:
            raise ValueError("a 2-gram model needs at least one sequence with units, got none")
        counted = {unit: None for followers in self._counts.values() for unit in followers}
        self.units = tuple(
            unit for unit in dict.fromkeys((*counted, *vocabulary)) if unit not in (END, UNKNOWN)
        )
        wrong = [unit for unit in self.units if unit == BEGIN or unit.split() != [unit]]
        if wrong:
            raise ValueError(
                f"units must be different from {BEGIN!r} and contain no white space, got "
                f"{wrong[:10]}"
            )
        self._unigram = self._estimate_unigram()
        # Computed once, because beam search needs them a hundred thousand times per line.
        self._sizes = {h: (each.total(), len(each)) for h, each in self._counts.items()}

    def _estimate_unigram(self) -> dict[str, float]:
        units = (*self.units, END, UNKNOWN)
        counts: Counter[str] = Counter()
        for followers in self._counts.values():
            counts.update(followers)
        total, kinds = counts.total(), len(counts)
        return {unit: (counts[unit] + kinds / len(units)) / (total + kinds) for unit in units}

    def log_prob(self, unit: str, history: str = BEGIN) -> float:
        """Return ln P(unit | history). Units outside the vocabulary count as unknown."""
        lower = self._unigram.get(unit, self._unigram[UNKNOWN])
        if history not in self._sizes:
            return math.log(lower)
        total, kinds = self._sizes[history]
        return math.log((self._counts[history][unit] + kinds * lower) / (total + kinds))

    def unigram_log_prob(self, unit: str) -> float:
        """Return ln P(unit)."""
        return math.log(self._unigram.get(unit, self._unigram[UNKNOWN]))

    def sequence_log_prob(self, units: Sequence[str]) -> float:
        """Return ln P of a complete sequence, including its end."""
        pairs = zip((BEGIN, *units), (*units, END), strict=True)
        return sum(self.log_prob(unit, history) for history, unit in pairs)

    def perplexity(self, sequences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity per unit. The end of a sequence counts as a unit.

        Raises:
            ValueError: if there are no sequences.
        """
        log_prob, number = 0.0, 0
        for units in sequences:
            log_prob += self.sequence_log_prob(units)
            number += len(units) + 1
        if not number:
            raise ValueError("perplexity needs at least one sequence, got none")
        return math.exp(-log_prob / number)

    def write_arpa(self, path: Path) -> None:
        """Write the model as an ARPA file.

        The probability of a pair that is not listed is its back-off weight times the unigram.
        """
        path.write_text("\n".join(self._arpa_lines()), encoding="utf-8")

    def _arpa_lines(self) -> Iterator[str]:
        pairs = [(h, unit) for h, followers in self._counts.items() for unit in followers]
        yield from ("\\data\\", f"ngram 1={len(self._unigram) + 1}", f"ngram 2={len(pairs)}")
        yield from ("", "\\1-grams:", f"-99\t{BEGIN}\t{self._backoff(BEGIN):.6f}")
        for unit, probability in self._unigram.items():
            line = f"{math.log10(probability):.6f}\t{unit}"
            yield line if unit == END else f"{line}\t{self._backoff(unit):.6f}"
        yield from ("", "\\2-grams:")
        for history, unit in pairs:
            yield f"{self.log_prob(unit, history) / math.log(10):.6f}\t{history} {unit}"
        yield from ("", "\\end\\", "")

    def _backoff(self, history: str) -> float:
        if history not in self._sizes:
            return 0.0
        total, kinds = self._sizes[history]
        return math.log10(kinds / (total + kinds))
