"""A corpus as recorded, before normalisation and stacking; every source of speech makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from examples.acoustic.corpus import Corpus
from examples.acoustic.features import FRAME_SHIFT_S
from examples.acoustic.fitted import Fitted
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
        ValueError: if a split is unknown, there are no recordings, or a key stands twice.
    """

    name: str
    recordings: tuple[Recording, ...]
    senones: SenoneMap
    lexicon: Lexicon
    frame_shift_s: float = FRAME_SHIFT_S

    def __post_init__(self) -> None:
        """Check splits and keys."""
        found = {recording.split for recording in self.recordings}
        if not found or not found <= set(SPLITS):
            raise ValueError(
                f"corpus {self.name} needs utterances in the splits {', '.join(SPLITS)} and in no "
                f"other, got {sorted(found)}"
            )
        keys = [recording.key for recording in self.recordings]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})[:10]
            raise ValueError(f"keys must be unique in corpus {self.name}, found twice: {twice}")

    def as_fitted(self, fitted: Fitted | None) -> RecordedCorpus:
        """Number senones as the model does, and pronounce words as in its training.

        Args:
            fitted: of the training; None leaves all as it is.

        Raises:
            ValueError: alignments are numbered in another way, or words have unknown phones.
        """
        if fitted is None:
            return self
        if any(recording.senones is not None for recording in self.recordings):
            fitted.check_numbering(self.senones)
        lexicon = fitted.lexicon_with(self.lexicon)
        return replace(self, senones=fitted.senones, lexicon=lexicon)

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
        fitted: Fitted | None = None,
    ) -> Corpus:
        """Normalise, stack and subsample.

        Args:
            stacking: the paper's 3 and 3 by default.
            normalisation: ``"global"``, estimated on the train split; ``"speaker"``, estimated on
                all utterances of each speaker, of every split; or ``"none"``.
            fitted: of the training, for a corpus to test on; None for one to train on.

        Raises:
            ValueError: the normalisation is global, and there is nothing that it comes from.
        """
        stacking = stacking or Stacking()
        fit = _global_fit(self.recordings, fitted) if normalisation == "global" else None
        recorded = _normalise(self.recordings, normalisation, fit)
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
            feature_dim=next(iter(recorded.values())).shape[1] * stacking.stack,
            frame_shift_s=self.frame_shift_s * stacking.subsample,
            stacking=stacking,
            recorded=recorded,
            normalisation=fit,
            transcripts=fitted.transcripts if fitted else (),
            **splits,
        )


def _global_fit(recordings: Sequence[Recording], fitted: Fitted | None) -> Normalisation:
    if fitted is not None and fitted.normalisation is not None:
        return fitted.normalisation
    train = [recording.features for recording in recordings if recording.split == "train"]
    if fitted is not None or not train:
        raise ValueError(
            "normalisation='global' is that of the train split, and neither is there one nor a "
            "checkpoint of a model that was trained with it (--ckpt_path)"
        )
    return Normalisation.fit(train)


def _normalise(
    recordings: Sequence[Recording], mode: NormalisationMode, fit: Normalisation | None
) -> dict[str, Tensor]:
    """Features by key."""
    if fit is not None:
        return {recording.key: fit.apply(recording.features) for recording in recordings}
    if mode == "none":
        return {recording.key: recording.features for recording in recordings}
    if mode != "speaker":
        raise ValueError(f"normalisation must be 'global', 'speaker' or 'none', got {mode!r}")
    by_speaker: dict[str, list[Tensor]] = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording.features)
    fits = {speaker: Normalisation.fit(parts) for speaker, parts in by_speaker.items()}
    return {r.key: fits[r.speaker].apply(r.features) for r in recordings}
