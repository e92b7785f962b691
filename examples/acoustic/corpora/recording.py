"""Recorded corpora, before normalisation and stacking, which all sources of speech return."""

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
from examples.acoustic.senones import SenoneMap
from examples.acoustic.stacking import Stacking
from examples.acoustic.utterance import Utterance

NormalisationMode = Literal["global", "speaker", "none"]
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An utterance at the frame rate of the recording.

    Attributes:
        key: name of the utterance, unique in its corpus.
        speaker: name of the speaker.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        words: transcript.
        features: (T, D) float32, features that are not normalised.
        senones: (T,) int64, or None without an alignment.
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
        name: name of the corpus.
        recordings: recordings of all splits.
        senones: numbering of their senones.
        lexicon: pronunciations of every word.
        frame_shift_s: seconds between frames.

    Raises:
        ValueError: a split is unknown, there are no recordings, or keys are not unique.
    """

    name: str
    recordings: tuple[Recording, ...]
    senones: SenoneMap
    lexicon: Lexicon
    frame_shift_s: float = FRAME_SHIFT_S

    def __post_init__(self) -> None:
        """Check splits and keys."""
        splits = {recording.split for recording in self.recordings}
        if not splits or not splits <= set(SPLITS):
            raise ValueError(
                f"corpus {self.name} needs utterances in the splits {', '.join(SPLITS)} and in no "
                f"other, got {sorted(splits)}"
            )
        keys = [recording.key for recording in self.recordings]
        if len(set(keys)) != len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})[:10]
            raise ValueError(
                f"keys must be unique in corpus {self.name}, these are repeated: {twice}"
            )

    def as_fitted(self, fitted: Fitted | None) -> RecordedCorpus:
        """Return the corpus with the senones and pronunciations of a trained model.

        Args:
            fitted: values of the training corpus. None: return this corpus unchanged.

        Raises:
            ValueError: the numbering of alignments differs, or words have unknown phones.
        """
        if fitted is None:
            return self
        if any(recording.senones is not None for recording in self.recordings):
            fitted.check_numbering(self.senones)
        lexicon = fitted.lexicon_with(self.lexicon)
        return replace(self, senones=fitted.senones, lexicon=lexicon)

    def finish(
        self,
        stacking: Stacking | None = None,
        normalisation: NormalisationMode = "global",
        fitted: Fitted | None = None,
    ) -> Corpus:
        """Return the corpus with normalised, stacked and subsampled features.

        Args:
            stacking: stacking and subsampling. None: 3 frames and every third one, as in the paper.
            normalisation: ``"global"``, estimated on the train split; ``"speaker"``, estimated on
                all utterances of each speaker in all splits; or ``"none"``.
            fitted: values of the training corpus of the model that is evaluated. None: training.

        Raises:
            ValueError: the normalisation is global, and there is neither a train split nor a
                checkpoint.
        """
        stacking = stacking or Stacking()
        common = None
        if normalisation == "global":
            common = _global_normalisation(self.recordings, fitted)
        recorded = _normalise(self.recordings, normalisation, common)
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
            normalisation=common,
            transcripts=fitted.transcripts if fitted else (),
            **splits,
        )


def _global_normalisation(recordings: Sequence[Recording], fitted: Fitted | None) -> Normalisation:
    if fitted is not None and fitted.normalisation is not None:
        return fitted.normalisation
    train = [recording.features for recording in recordings if recording.split == "train"]
    if fitted is not None or not train:
        raise ValueError(
            "normalisation='global' is estimated on the train split, but there is neither a train "
            "split nor a checkpoint of a model that was trained with it (--ckpt_path)"
        )
    return Normalisation.fit(train)


def _normalise(
    recordings: Sequence[Recording], mode: NormalisationMode, common: Normalisation | None
) -> dict[str, Tensor]:
    """Return the normalised features by key."""
    if common is not None:
        return {recording.key: common.apply(recording.features) for recording in recordings}
    if mode == "none":
        return {recording.key: recording.features for recording in recordings}
    if mode != "speaker":
        raise ValueError(f"normalisation must be 'global', 'speaker' or 'none', got {mode!r}")
    by_speaker: dict[str, list[Tensor]] = {}
    for recording in recordings:
        by_speaker.setdefault(recording.speaker, []).append(recording.features)
    of_speaker = {speaker: Normalisation.fit(features) for speaker, features in by_speaker.items()}
    return {r.key: of_speaker[r.speaker].apply(r.features) for r in recordings}
