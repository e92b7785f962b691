"""Values of the training corpus that the evaluation of a model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from examples.acoustic.features import Normalisation
from examples.acoustic.lexicon import Lexicon, SenoneMap
from examples.packed_json import packed, unpacked


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Values computed from the train split, which checkpoints contain.

    Attributes:
        senones: numbering of the outputs of the model.
        lexicon: pronunciations.
        normalisation: normalisation of the features, or None if each speaker has its own.
        transcripts: words of the train utterances, for the grammar.
    """

    senones: SenoneMap
    lexicon: Lexicon
    normalisation: Normalisation | None
    transcripts: tuple[tuple[str, ...], ...]

    def state_dict(self) -> dict[str, Any]:
        """Return the values as tensors, so that no object is unpickled."""
        about = {
            "senones": asdict(self.senones),
            "lexicon": [[word, self.lexicon.pronunciations(word)] for word in self.lexicon.words],
            "transcripts": [" ".join(words) for words in self.transcripts],
        }
        moments = {} if self.normalisation is None else asdict(self.normalisation)
        return {"about": packed(about), **moments}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Fitted:
        """Return the values of a :meth:`state_dict`."""
        about = unpacked(state["about"])
        phones, states = about["senones"]["phones"], about["senones"]["states_per_phone"]
        normalisation = None
        if "mean" in state:
            normalisation = Normalisation(state["mean"], state["deviation"])
        return cls(
            senones=SenoneMap(tuple(phones), states),
            lexicon=Lexicon(dict(about["lexicon"])),
            normalisation=normalisation,
            transcripts=tuple(tuple(text.split()) for text in about["transcripts"]),
        )

    def check_numbering(self, other: SenoneMap) -> None:
        """Check that senones of another corpus have the same numbers.

        Raises:
            ValueError: the numbers differ.
        """
        if self.senones.phones[: len(other.phones)] != other.phones:
            raise ValueError(
                "the alignments must be numbered by the phones that the model was trained on "
                f"({' '.join(self.senones.phones)}), got {' '.join(other.phones)}"
            )

    def lexicon_with(self, other: Lexicon) -> Lexicon:
        """Return the lexicon, extended by the new words of another one.

        Raises:
            ValueError: new words have phones that the model was not trained on.
        """
        known = {word: self.lexicon.pronunciations(word) for word in self.lexicon.words}
        new = {word: other.pronunciations(word) for word in other.words if word not in known}
        trained_phones = set(self.senones.phones)
        impossible = sorted(
            word for word, v in new.items() if not trained_phones.issuperset(chain(*v))
        )
        if impossible:
            raise ValueError(
                f"{len(impossible)} words have phones that the model was not trained on: "
                f"{', '.join(impossible[:20])}; leave their utterances out"
            )
        return Lexicon(known | new)
