"""What a corpus to test on takes from the one that the model was trained on."""

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
    """What was computed from the train split, kept in checkpoints.

    Attributes:
        senones: numbering of the model's outputs.
        lexicon: pronunciations.
        normalisation: of the features, or None where each speaker has one, or there is none.
        transcripts: words of the train utterances, for language models.
    """

    senones: SenoneMap
    lexicon: Lexicon
    normalisation: Normalisation | None
    transcripts: tuple[tuple[str, ...], ...]

    def state_dict(self) -> dict[str, Any]:
        """Tensors alone, so that no object is unpickled."""
        lexicon = self.lexicon
        about = {
            "senones": asdict(self.senones),
            "lexicon": [[word, lexicon.pronunciations(word)] for word in lexicon.words],
            "transcripts": [" ".join(words) for words in self.transcripts],
        }
        fit = self.normalisation
        moments = {} if fit is None else {"mean": fit.mean, "deviation": fit.deviation}
        return {"about": packed(about), **moments}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Fitted:
        """The inverse of :meth:`state_dict`."""
        about = unpacked(state["about"])
        phones, states = about["senones"]["phones"], about["senones"]["states_per_phone"]
        return cls(
            senones=SenoneMap(tuple(phones), states),
            lexicon=Lexicon(dict(about["lexicon"])),
            normalisation=Normalisation(state["mean"], state["deviation"])
            if "mean" in state
            else None,
            transcripts=tuple(tuple(text.split()) for text in about["transcripts"]),
        )

    def check_numbering(self, other: SenoneMap) -> None:
        """Check that senones of another numbering mean the same here.

        Raises:
            ValueError: they do not.
        """
        shared = self.senones.phones[: len(other.phones)]
        if (shared, self.senones.states_per_phone) != (other.phones, other.states_per_phone):
            raise ValueError(
                "the alignments must be numbered by the phones that the model was trained on "
                f"({' '.join(self.senones.phones)}, {self.senones.states_per_phone} states each), "
                f"got {' '.join(other.phones)}, {other.states_per_phone} states each; leave the "
                "alignments out to have word errors alone"
            )

    def lexicon_with(self, other: Lexicon) -> Lexicon:
        """The lexicon with the words of another one that it lacks.

        Raises:
            ValueError: such words have phones that the model was not trained on.
        """
        known = set(self.senones.phones)
        new = {w: other.pronunciations(w) for w in other.words if w not in self.lexicon}
        if known.issuperset(self.lexicon.phones):
            foreign = sorted(w for w, v in new.items() if not known.issuperset(chain(*v)))
            if foreign:
                raise ValueError(
                    f"{len(foreign)} words have phones that the model was not trained on: "
                    f"{', '.join(foreign[:20])}; leave their utterances out, or take the lexicon "
                    "of the training"
                )
        return Lexicon({w: self.lexicon.pronunciations(w) for w in self.lexicon.words} | new)
