"""Values of the training corpus that the evaluation of a model needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from examples.acoustic.lexicon import Lexicon
from examples.acoustic.normalisation import Normalisation
from examples.acoustic.senones import SenoneMap
from examples.packed_json import packed, unpacked


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Values computed from the train split, which checkpoints contain.

    Attributes:
        senones: numbering of the outputs of the model.
        lexicon: pronunciations.
        normalisation: normalisation of the features, or None if there is none for all speakers.
        transcripts: words of the train utterances, for language models.
    """

    senones: SenoneMap
    lexicon: Lexicon
    normalisation: Normalisation | None
    transcripts: tuple[tuple[str, ...], ...]

    def state_dict(self) -> dict[str, Any]:
        """Return the values as tensors, so that no object is unpickled."""
        lexicon = self.lexicon
        about = {
            "senones": asdict(self.senones),
            "lexicon": [[word, lexicon.pronunciations(word)] for word in lexicon.words],
            "transcripts": [" ".join(words) for words in self.transcripts],
        }
        moments = {}
        if self.normalisation is not None:
            moments["mean"] = self.normalisation.mean
            moments["deviation"] = self.normalisation.deviation
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
        shared = self.senones.phones[: len(other.phones)]
        if (shared, self.senones.states_per_phone) != (other.phones, other.states_per_phone):
            raise ValueError(
                "the alignments must be numbered by the phones that the model was trained on "
                f"({' '.join(self.senones.phones)}, {self.senones.states_per_phone} states each), "
                f"got {' '.join(other.phones)}, {other.states_per_phone} states each; leave the "
                "alignments out to compute only word errors"
            )

    def lexicon_with(self, other: Lexicon) -> Lexicon:
        """Return the lexicon, extended by the new words of another one.

        Raises:
            ValueError: new words have phones that the model was not trained on.
        """
        trained_phones = set(self.senones.phones)
        new = {w: other.pronunciations(w) for w in other.words if w not in self.lexicon}
        if trained_phones.issuperset(self.lexicon.phones):
            impossible = sorted(
                word
                for word, variants in new.items()
                if not trained_phones.issuperset(chain(*variants))
            )
            if impossible:
                raise ValueError(
                    f"{len(impossible)} words have phones that the model was not trained on: "
                    f"{', '.join(impossible[:20])}; leave their utterances out, or use the lexicon "
                    "of the training"
                )
        return Lexicon({w: self.lexicon.pronunciations(w) for w in self.lexicon.words} | new)
