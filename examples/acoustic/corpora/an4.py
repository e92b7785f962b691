"""AN4 (CMU Census): spoken letters, numbers and commands, as 13 mel cepstra per 10 ms frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.acoustic.corpora.recording import (
    SPLITS,
    NormalisationMode,
    RecordedCorpus,
    Recording,
)
from examples.acoustic.corpus import Corpus
from examples.acoustic.features import with_deltas
from examples.acoustic.fitted import Fitted
from examples.acoustic.lexicon import Lexicon, SenoneMap

_FEATURES, _MANIFEST, _DICTIONARY = "an4_mfcc.npz", "manifest.jsonl", "an4.dic"


def build_an4_corpus(
    *,
    path: str | Path,
    delta_orders: int = 0,
    normalisation: NormalisationMode = "speaker",
    fitted: Fitted | None = None,
) -> Corpus:
    """Read the cepstra, transcripts and pronunciations of AN4.

    A frame of the model has 39 features and a length of 30 ms. AN4 has no alignments, so senones
    are None until ``aligned_corpus`` computes them.

    Args:
        path: folder with ``an4_mfcc.npz``, ``manifest.jsonl`` and ``an4.dic``.
        delta_orders: order up to which deltas are appended, for example 2 for deltas of deltas.
        normalisation: ``"speaker"`` (the default, because cepstra depend on voice and microphone)
            or ``"global"``.
        fitted: values of the training corpus of the model that is evaluated. None: training.

    Raises:
        FileNotFoundError: files are missing. The error lists all of them.
        ValueError: lines of the manifest are invalid, or list utterances without cepstra.
        KeyError: words have no pronunciation. The error lists all of them.
    """
    folder = Path(path)
    files = (_FEATURES, _MANIFEST, _DICTIONARY)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"folder {folder} of AN4 lacks {', '.join(missing)}")
    lexicon = Lexicon.from_file(folder / _DICTIONARY)
    recordings = _read(folder, delta_orders)
    lexicon.check_words(word for recording in recordings for word in recording.words)
    recorded = RecordedCorpus(
        name="an4",
        recordings=recordings,
        senones=SenoneMap.from_phones(lexicon.phones),
        lexicon=lexicon,
    )
    return recorded.finish(normalisation, fitted)


def _read(folder: Path, delta_orders: int) -> tuple[Recording, ...]:
    entries = _read_manifest(folder / _MANIFEST)
    with np.load(folder / _FEATURES, allow_pickle=False) as cepstra:
        absent = [entry["path"] for entry in entries if entry["path"] not in cepstra]
        if absent:
            raise ValueError(f"{_FEATURES} lacks {len(absent)} utterances: {absent[:20]}")
        return tuple(
            Recording(
                key=entry["path"],
                speaker=str(entry.get("speaker", "unknown")),
                split=entry["split"],
                words=tuple(entry["text"].split()),
                features=with_deltas(
                    torch.from_numpy(cepstra[entry["path"]].astype(np.float32)), delta_orders
                ),
            )
            for entry in entries
        )


def _read_manifest(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a manifest, JSON objects with ``path``, ``text`` and ``split``."""
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        entry = json.loads(line)
        if not {"path", "text", "split"} <= entry.keys() or entry["split"] not in SPLITS:
            raise ValueError(
                f"{path}:{number}: a line gives path, text and split (one of {SPLITS}), got {line}"
            )
        entries.append(entry)
    if not entries:
        raise ValueError(f"{path} lists no utterance")
    return entries
