"""A corpus as recorded, before normalisation and stacking; every source of speech makes one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from examples.acoustic.corpus import Corpus
from examples.acoustic.features import FRAME_SHIFT_S
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.normalisation import Normalisation
from examples.acoustic.segmentation import uniform_segmentation
from examples.acoustic.senones import SenoneMap
from examples.acoustic.stacking import Stacking
from examples.acoustic.utterance import Utterance

NormalisationMode = Literal["global", "speaker", "none"]
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One utterance at the rate of the recording.

    Attributes:
        key: name, unique in its corpus.
        speaker: name of the speaker.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        words: what was said.
        features: (T, D) float32, not normalised.
        senones: (T,) int64, or None where there is no alignment.
    """

    key: str
    speaker: str
    split: str
    words: tuple[str, ...]
    features: Tensor
    senones: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class RecordedCorpus:
    """All recordings of a corpus.

    Attributes:
        name: of the corpus.
        recordings: of all splits.
        senones: numbering of their senones.
        lexicon: pronunciation of every word.
        frame_shift_s: seconds between frames.

    Raises:
        ValueError: if a split is unknown, a split is empty, or a key stands twice.
    """

    name: str
    recordings: tuple[Recording, ...]
    senones: SenoneMap
    lexicon: Lexicon
    frame_shift_s: float = FRAME_SHIFT_S

    def __post_init__(self) -> None:
        """Check splits and keys."""
        found = {recording.split for recording in self.recordings}
        if found != set(SPLITS):
            raise ValueError(
                f"corpus {self.name} needs utterances in each of the splits {', '.join(SPLITS)} "
                f"and in no other, got {sorted(found)}"
            )
        keys = [recording.key for recording in self.recordings]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})[:10]
            raise ValueError(f"keys must be unique in corpus {self.name}, found twice: {twice}")

    def flat_start(self, silence_frames: int = 20) -> RecordedCorpus:
        """Give recordings without alignment a uniform one (``uniform_segmentation``)."""
        started = tuple(
            recording
            if recording.senones is not None
            else replace(
                recording,
                senones=uniform_segmentation(
                    recording.words,
                    self.lexicon,
                    self.senones,
                    recording.features.shape[0],
                    silence_frames,
                ),
            )
            for recording in self.recordings
        )
        return replace(self, recordings=started)

    def finish(
        self,
        stacking: Stacking | None = None,
        normalisation: NormalisationMode = "global",
    ) -> Corpus:
        """Normalise, stack and subsample.

        Args:
            stacking: the paper's 3 and 3 by default.
            normalisation: ``"global"``, estimated on the train split; ``"speaker"``, estimated on
                all utterances of each speaker, of every split; or ``"none"``.
        """
        stacking = stacking or Stacking()
        recorded = _normalise(self.recordings, normalisation)
        splits: dict[str, list[Utterance]] = {split: [] for split in SPLITS}
        for recording in self.recordings:
            splits[recording.split].append(
                Utterance(
                    key=recording.key,
                    speaker=recording.speaker,
                    words=recording.words,
                    features=stacking.features(recorded[recording.key]),
                    senones=None
                    if recording.senones is None
                    else stacking.targets(recording.senones),
                )
            )
        return Corpus(
            name=self.name,
            senones=self.senones,
            lexicon=self.lexicon,
            feature_dim=splits["train"][0].features.shape[1],
            frame_shift_s=self.frame_shift_s * stacking.subsample,
            stacking=stacking,
            recorded=recorded,
            **splits,
        )


def _normalise(recordings: Iterable[Recording], mode: NormalisationMode) -> dict[str, Tensor]:
    """Features by key."""
    recordings = list(recordings)
    if mode == "none":
        return {recording.key: recording.features for recording in recordings}
    if mode == "global":
        fit = Normalisation.fit(r.features for r in recordings if r.split == "train")
        return {recording.key: fit.apply(recording.features) for recording in recordings}
    if mode != "speaker":
        raise ValueError(f"normalisation must be 'global', 'speaker' or 'none', got {mode!r}")
    by_speaker: dict[str, list[Tensor]] = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording.features)
    fits = {speaker: Normalisation.fit(parts) for speaker, parts in by_speaker.items()}
    return {r.key: fits[r.speaker].apply(r.features) for r in recordings}
