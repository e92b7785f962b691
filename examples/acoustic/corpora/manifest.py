"""Corpora of WAV or FLAC files with a JSON Lines manifest."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import soundfile
import torch

from examples.acoustic.corpora.cache import cached
from examples.acoustic.corpora.pronunciation import lexicon_for
from examples.acoustic.corpora.recording import (
    SPLITS,
    NormalisationMode,
    RecordedCorpus,
    Recording,
)
from examples.acoustic.corpus import Corpus
from examples.acoustic.features import SAMPLE_RATE_HZ, log_filter_bank, resample
from examples.acoustic.fitted import Fitted
from examples.acoustic.senones import SenoneMap
from examples.acoustic.stacking import Stacking
from examples.file_source import FileSource, default_source

_LISTED_PROBLEMS = 20


def build_manifest_corpus(
    *,
    path: str | Path,
    audio: str | Path | None = None,
    lexicon: str = "espeak",
    sample_rate_hz: int = SAMPLE_RATE_HZ,
    cache_dir: str | Path | None = None,
    flat_start: bool = False,
    stack: int = 3,
    subsample: int = 3,
    normalisation: NormalisationMode = "global",
    fitted: Fitted | None = None,
) -> Corpus:
    """Read the recordings of a manifest, and compute their filter-bank energies.

    Args:
        path: manifest, or folder with a ``manifest.jsonl``. Each line is a JSON object with the
            fields ``path``, ``text``, ``split`` (train, valid or test) and, optionally,
            ``speaker``.
        audio: folder or zip file with the recordings. None: the folder of the manifest or, if it
            has none of these files, the only zip file in it.
        lexicon: ``"espeak"``, ``"graphemes"`` or the path of a dictionary (``lexicon_for``).
        sample_rate_hz: sample rate to which all recordings are resampled.
        cache_dir: folder of the cache of features. None: no cache.
        flat_start: whether utterances have uniform senones. Otherwise, they have none.
        stack: number of frames in a stack.
        subsample: number of 10 ms frames for each frame of the model.
        normalisation: ``"global"``, ``"speaker"`` or ``"none"``.
        fitted: values of the training corpus of the model that is evaluated. None: training.

    Raises:
        ValueError: lines or recordings cannot be read. The error lists them.
    """
    manifest = Path(path) / "manifest.jsonl" if Path(path).is_dir() else Path(path)
    entries = read_manifest(manifest)
    names = [entry["path"] for entry in entries]
    source = FileSource(audio or default_source(manifest, names), "audio")
    inputs = {
        "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "audio": source.state(names),
        "sample_rate_hz": sample_rate_hz,
        "lexicon": lexicon,
        "dictionary": Path(lexicon).read_text(encoding="utf-8") if Path(lexicon).is_file() else "",
    }

    def build() -> RecordedCorpus:
        return _record(manifest.parent.name, entries, source, lexicon, sample_rate_hz)

    recorded = cached("manifest", inputs, cache_dir, build)
    recorded = recorded.as_fitted(fitted)
    if flat_start:
        recorded = recorded.flat_start()
    return recorded.finish(Stacking(stack, subsample), normalisation, fitted)


def read_manifest(path: str | Path) -> list[dict[str, Any]]:
    """Read a manifest, whose lines are JSON objects with ``path``, ``text`` and ``split``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: lines are invalid. The error lists them.
    """
    entries: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            problems.append(f"line {number}: {error}")
            continue
        missing = [
            name
            for name in ("path", "text", "split")
            if not isinstance(entry, dict) or not isinstance(entry.get(name), str)
        ]
        if missing:
            problems.append(f"line {number}: no text in {', '.join(missing)}")
        elif entry["split"] not in SPLITS:
            problems.append(f"line {number}: split {entry['split']!r} is not one of {SPLITS}")
        else:
            entries.append(entry)
    _raise_problems(problems, f"lines of {path}")
    if not entries:
        raise ValueError(f"{path} lists no utterance")
    return entries


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without punctuation between words."""
    words = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())
    return tuple(word.replace("’", "'") for word in words)


def _record(
    name: str,
    entries: Sequence[dict[str, Any]],
    source: FileSource,
    lexicon: str,
    sample_rate_hz: int,
) -> RecordedCorpus:
    recordings: list[Recording] = []
    problems: list[str] = []
    for entry in entries:
        try:
            words = split_words(entry["text"])
            if not words:
                raise ValueError(f"no words in the text {entry['text']!r}")
            features = _features(source.read(entry["path"]), sample_rate_hz)
        # soundfile, zipfile and the file system raise many types of exceptions.
        except Exception as error:
            problems.append(f"{entry['path']}: {error}")
            continue
        recordings.append(
            Recording(
                key=entry["path"],
                speaker=str(entry.get("speaker", "unknown")),
                split=entry["split"],
                words=words,
                features=features,
            )
        )
    _raise_problems(problems, f"recordings in {source.path}")
    pronunciations = lexicon_for((word for r in recordings for word in r.words), lexicon)
    return RecordedCorpus(
        name=name,
        recordings=tuple(recordings),
        senones=SenoneMap.from_phones(pronunciations.phones),
        lexicon=pronunciations,
    )


def _features(data: bytes, sample_rate_hz: int) -> torch.Tensor:
    samples, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    wave = torch.from_numpy(samples.mean(axis=1))
    if not bool(torch.isfinite(wave).all()):
        raise ValueError("samples that are not finite")
    return log_filter_bank(resample(wave, rate_hz, sample_rate_hz), sample_rate_hz)


def _raise_problems(problems: Sequence[str], what: str) -> None:
    """Raise an error that lists the problems, if there are any."""
    if problems:
        more = len(problems) - _LISTED_PROBLEMS
        listed = "\n  ".join(problems[:_LISTED_PROBLEMS])
        rest = f"\n  and {more} more" if more > 0 else ""
        raise ValueError(
            f"{len(problems)} {what} cannot be used; fix them or remove them from the manifest:"
            f"\n  {listed}{rest}"
        )
