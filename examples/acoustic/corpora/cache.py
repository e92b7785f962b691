"""Recorded corpora on disk, so that several ranks need not make the same one."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from examples.acoustic.corpora.recording import RecordedCorpus, Recording
from examples.acoustic.lexicon import Lexicon
from examples.acoustic.senones import SenoneMap

# Raise it whenever the file, or what goes into it, changes its meaning.
_FORMAT = 1
_NO_SENONE = -1
_LONGEST_WAIT_S = 1800.0


def default_cache_dir() -> Path:
    """``lightning_hier`` in the user's cache folder (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lightning_hier"


def cached(
    name: str,
    made_from: Mapping[str, Any],
    cache_dir: str | Path | None,
    make: Callable[[], RecordedCorpus],
) -> RecordedCorpus:
    """Read a corpus from ``cache_dir``, or make it and write it there.

    Of several processes that ask for the same corpus at once, one makes it and the others wait.

    Args:
        name: start of the file's name.
        made_from: all that the corpus depends on, as JSON; other values, another file.
        cache_dir: folder, made where missing; None makes the corpus without reading or writing.
        make: makes the corpus.

    Raises:
        TimeoutError: if another process has been making it for half an hour.
    """
    if cache_dir is None:
        return make()
    text = json.dumps({"format": _FORMAT, **made_from}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(cache_dir) / f"{name}-{digest}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock ends with its process: one that dies does not stop the others.
        with FileLock(f"{path}.lock", timeout=_LONGEST_WAIT_S):
            if not path.exists():
                write_recorded(make(), path)
    return read_recorded(path)


def write_recorded(corpus: RecordedCorpus, path: Path) -> None:
    """Write to ``path``; a reader never sees half a file."""
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(
                file,
                about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                frames=np.array([r.features.shape[0] for r in recordings]),
                features=torch.cat([r.features for r in recordings]).numpy(),
                senones=torch.cat(senones).numpy(),
            )
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_recorded(path: Path) -> RecordedCorpus:
    """Read what :func:`write_recorded` wrote.

    Raises:
        ValueError: if the file is damaged; it names the file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            frames = file["frames"].tolist()
            features = torch.from_numpy(file["features"]).split(frames)
            senones = torch.from_numpy(file["senones"]).split(frames)
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable corpus cache ({error}); delete it, and it is made again"
        ) from error
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
