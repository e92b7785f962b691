"""Corpora of WAV or FLAC files listed in a JSON-lines manifest."""

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
    """Read the recordings that a manifest lists, and take their filter banks.

    Args:
        path: the manifest, or a folder with a ``manifest.jsonl``: one JSON object per line with the
            fields ``path``, ``text``, ``split`` (train, valid or test) and, where known,
            ``speaker``.
        audio: folder or zip to which ``path`` is relative; None is the manifest's own folder, or
            the only zip in it where it holds no such files.
        lexicon: ``"espeak"``, ``"graphemes"`` or a dictionary's path (``lexicon_for``).
        sample_rate_hz: all sounds are resampled to it.
        cache_dir: folder where the features are kept; None keeps none.
        flat_start: give each utterance uniform senones; else they have none.
        stack: frames in a stack.
        subsample: 10 ms frames for each frame of the model.
        normalisation: ``"global"``, ``"speaker"`` or ``"none"``.
        fitted: what the model that is tested was trained on; None to train.

    Raises:
        ValueError: if lines or sounds cannot be read; one error that lists them.
    """
    manifest = Path(path) / "manifest.jsonl" if Path(path).is_dir() else Path(path)
    entries = read_manifest(manifest)
    names = [entry["path"] for entry in entries]
    source = FileSource(audio or default_source(manifest, names), "audio")
    made_from = {
        "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "audio": source.state(names),
        "sample_rate_hz": sample_rate_hz,
        "lexicon": lexicon,
        "dictionary": Path(lexicon).read_text(encoding="utf-8") if Path(lexicon).is_file() else "",
    }

    def make() -> RecordedCorpus:
        return _record(manifest.parent.name, entries, source, lexicon, sample_rate_hz)

    recorded = cached("manifest", made_from, cache_dir, make)
    recorded = recorded.as_fitted(fitted)
    if flat_start:
        recorded = recorded.flat_start()
    return recorded.finish(Stacking(stack, subsample), normalisation, fitted)


def read_manifest(path: str | Path) -> list[dict[str, Any]]:
    """Read JSON lines with at least ``path``, ``text`` and ``split``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if lines are no such objects; one error that lists them.
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
            problems.append(f"line {number}: split {entry['split']!r} is none of {SPLITS}")
        else:
            entries.append(entry)
    _refuse(problems, f"lines of {path}")
    if not entries:
        raise ValueError(f"{path} lists no utterance")
    return entries


def split_words(text: str) -> tuple[str, ...]:
    """Words of a text in lower case, punctuation left out except inside words."""
    found = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())
    return tuple(word.replace("’", "'") for word in found)


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
        # soundfile, zipfile and the file system raise many types; all of them end in the list.
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
    _refuse(problems, f"recordings in {source.path}")
    found = lexicon_for((word for r in recordings for word in r.words), lexicon)
    return RecordedCorpus(
        name=name,
        recordings=tuple(recordings),
        senones=SenoneMap.from_phones(found.phones),
        lexicon=found,
    )


def _features(data: bytes, sample_rate_hz: int) -> torch.Tensor:
    samples, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    wave = torch.from_numpy(samples.mean(axis=1))
    if not bool(torch.isfinite(wave).all()):
        raise ValueError("samples that are not finite")
    return log_filter_bank(resample(wave, rate_hz, sample_rate_hz), sample_rate_hz)


def _refuse(problems: Sequence[str], what: str) -> None:
    if problems:
        more = len(problems) - _LISTED_PROBLEMS
        listed = "\n  ".join(problems[:_LISTED_PROBLEMS])
        rest = f"\n  and {more} more" if more > 0 else ""
        raise ValueError(
            f"{len(problems)} {what} cannot be used; mend them or take them out of the manifest:"
            f"\n  {listed}{rest}"
        )
