"""Cache of recorded corpora."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.acoustic.corpora.recording import RecordedCorpus, Recording
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SenoneMap
from examples.array_cache import Arrays, as_json_array, cached_arrays, from_json_array

# Version of the cache. A change of the files or of their content increments it.
_FORMAT = 2
_NO_SENONE = -1


def cached(
    name: str,
    inputs: Mapping[str, Any],
    cache_dir: str | Path | None,
    build: Callable[[], RecordedCorpus],
) -> RecordedCorpus:
    """Read a corpus from a cache, or build it and write it there. See ``cached_arrays``.

    Args:
        name: prefix of the file name.
        inputs: everything that the corpus depends on, as JSON.
        cache_dir: folder of the cache. None: build the corpus, without reading or writing.
        build: function that returns the corpus.

    """
    if cache_dir is None:
        return build()
    versioned = {"format": _FORMAT, **inputs}
    return from_arrays(cached_arrays(name, versioned, cache_dir, lambda: to_arrays(build())))


def to_arrays(corpus: RecordedCorpus) -> Arrays:
    """Return a corpus as arrays, without objects."""
    recordings = corpus.recordings
    about = {
        "name": corpus.name,
        "frame_shift_s": corpus.frame_shift_s,
        "senones": asdict(corpus.senones),
        "lexicon": {word: corpus.lexicon.pronunciations(word) for word in corpus.lexicon.words},
        "recordings": [[r.key, r.speaker, r.split, list(r.words)] for r in recordings],
        "aligned": [r.senones is not None for r in recordings],
    }
    senones = [
        torch.full((r.features.shape[0],), _NO_SENONE) if r.senones is None else r.senones
        for r in recordings
    ]
    return {
        "about": as_json_array(about),
        "frames": np.array([r.features.shape[0] for r in recordings]),
        "features": torch.cat([r.features for r in recordings]).numpy(),
        "senones": torch.cat(senones).numpy(),
    }


def from_arrays(arrays: Arrays) -> RecordedCorpus:
    """Return the corpus of :func:`to_arrays`."""
    about = from_json_array(arrays["about"])
    frames = arrays["frames"].tolist()
    features = torch.from_numpy(arrays["features"]).split(frames)
    senones = torch.from_numpy(arrays["senones"]).split(frames)
    return RecordedCorpus(
        name=about["name"],
        frame_shift_s=about["frame_shift_s"],
        senones=SenoneMap(tuple(about["senones"]["phones"]), about["senones"]["states_per_phone"]),
        lexicon=Lexicon(about["lexicon"]),
        recordings=tuple(
            Recording(
                key=key,
                speaker=speaker,
                split=split,
                words=tuple(words),
                features=features[i],
                senones=senones[i] if about["aligned"][i] else None,
            )
            for i, (key, speaker, split, words) in enumerate(about["recordings"])
        ),
    )
