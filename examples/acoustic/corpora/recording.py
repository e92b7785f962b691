"""Recordings of a corpus, before normalisation and stacking, and their cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from examples.acoustic.corpus import Corpus, Utterance
from examples.acoustic.features import STACK, Normalisation, stacked, stacked_targets
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon, SenoneMap
from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array

NormalisationMode = Literal["global", "speaker"]
SPLITS = ("train", "valid", "test")

# Version of the cache. A change of the files or of their content increments it.
_FORMAT = 3


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
    """

    name: str
    recordings: tuple[Recording, ...]
    senones: SenoneMap
    lexicon: Lexicon

    def finish(self, normalisation: NormalisationMode, fitted: Fitted | None) -> Corpus:
        """Return the corpus with normalised and stacked features.

        Args:
            normalisation: ``"global"``, estimated on the train split; or ``"speaker"``, estimated
                on all utterances of each speaker in all splits.
            fitted: values of the training corpus of the model that is evaluated, whose senones and
                pronunciations the corpus then has. None: training.

        Raises:
            ValueError: the numbering of alignments differs, words have unknown phones, or the
                normalisation is global and there is neither a train split nor a checkpoint.
        """
        if fitted is not None and self.recordings[0].senones is not None:
            fitted.check_numbering(self.senones)
        common = _global_normalisation(self, fitted) if normalisation == "global" else None
        recorded = _normalised(self.recordings, common)
        splits: dict[str, list[Utterance]] = {split: [] for split in SPLITS}
        for each in self.recordings:
            splits[each.split].append(
                Utterance(
                    key=each.key,
                    speaker=each.speaker,
                    words=each.words,
                    features=stacked(recorded[each.key]),
                    senones=None if each.senones is None else stacked_targets(each.senones),
                )
            )
        return Corpus(
            name=self.name,
            senones=fitted.senones if fitted else self.senones,
            lexicon=fitted.lexicon_with(self.lexicon) if fitted else self.lexicon,
            feature_dim=STACK * self.recordings[0].features.shape[1],
            recorded=recorded,
            normalisation=common,
            transcripts=fitted.transcripts if fitted else tuple(u.words for u in splits["train"]),
            **splits,
        )


def _global_normalisation(corpus: RecordedCorpus, fitted: Fitted | None) -> Normalisation:
    if fitted is not None and fitted.normalisation is not None:
        return fitted.normalisation
    train = [each.features for each in corpus.recordings if each.split == "train"]
    if fitted is not None or not train:
        raise ValueError(
            "normalisation='global' is estimated on the train split, but there is neither a train "
            "split nor a checkpoint of a model that was trained with it (--ckpt_path)"
        )
    return Normalisation.fit(train)


def _normalised(recordings: Sequence[Recording], common: Normalisation | None) -> dict[str, Tensor]:
    """Return the features by key, normalised in common or else for each speaker."""
    by_speaker: dict[str, list[Tensor]] = {}
    for each in recordings:
        by_speaker.setdefault(each.speaker, []).append(each.features)
    moments = {
        speaker: common or Normalisation.fit(features) for speaker, features in by_speaker.items()
    }
    return {each.key: moments[each.speaker].apply(each.features) for each in recordings}


def cached_recordings(
    name: str,
    inputs: Mapping[str, Any],
    cache_dir: str | Path | None,
    build: Callable[[], RecordedCorpus],
) -> RecordedCorpus:
    """Read an aligned corpus from a cache, or build it and write it there.

    Args:
        name: prefix of the file name.
        inputs: everything that the corpus depends on, as JSON.
        cache_dir: folder of the cache. None: build the corpus, without reading or writing.
        build: function that returns the corpus, whose recordings have senones.

    """
    if cache_dir is None:
        return build()
    versioned = {"format": _FORMAT, **inputs}
    return _from_arrays(cached_arrays(name, versioned, cache_dir, lambda: _to_arrays(build())))


def _to_arrays(corpus: RecordedCorpus) -> Arrays:
    recordings = corpus.recordings
    about = {
        "name": corpus.name,
        "senones": asdict(corpus.senones),
        "lexicon": {word: corpus.lexicon.pronunciations(word) for word in corpus.lexicon.words},
        "recordings": [[r.key, r.speaker, r.split, list(r.words)] for r in recordings],
    }
    return {
        "about": as_json_array(about),
        "frames": np.array([r.features.shape[0] for r in recordings]),
        "features": torch.cat([r.features for r in recordings]).numpy(),
        "senones": torch.cat([r.senones for r in recordings if r.senones is not None]).numpy(),
    }


def _from_arrays(arrays: Arrays) -> RecordedCorpus:
    about = from_json_array(arrays["about"])
    frames = arrays["frames"].tolist()
    features = torch.from_numpy(arrays["features"]).split(frames)
    senones = torch.from_numpy(arrays["senones"]).split(frames)
    return RecordedCorpus(
        name=about["name"],
        senones=SenoneMap(tuple(about["senones"]["phones"]), about["senones"]["states_per_phone"]),
        lexicon=Lexicon(about["lexicon"]),
        recordings=tuple(
            Recording(
                key=key,
                speaker=speaker,
                split=split,
                words=tuple(words),
                features=features[i],
                senones=senones[i],
            )
            for i, (key, speaker, split, words) in enumerate(about["recordings"])
        ),
    )
