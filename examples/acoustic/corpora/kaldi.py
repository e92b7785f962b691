"""Corpora in Kaldi data directories: feats.scp, text, utt2spk, and alignments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from examples.acoustic.corpora.kaldi_archive import read_archive, read_rxfilename
from examples.acoustic.corpora.pronunciation import lexicon_for
from examples.acoustic.corpora.recording import NormalisationMode, RecordedCorpus, Recording
from examples.acoustic.corpus import Corpus
from examples.acoustic.features import FRAME_SHIFT_S
from examples.acoustic.fitted import Fitted
from examples.acoustic.senones import SILENCE, SenoneMap
from examples.acoustic.stacking import Stacking


def build_kaldi_corpus(
    *,
    train: str | Path | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    alignments: str | Path | list[str] | None = None,
    phones: str | Path | None = None,
    states_per_phone: int = 3,
    lexicon: str = "graphemes",
    frame_shift_s: float = FRAME_SHIFT_S,
    flat_start: bool = False,
    stack: int = 3,
    subsample: int = 3,
    normalisation: NormalisationMode = "global",
    fitted: Fitted | None = None,
) -> Corpus:
    """Read data directories and, optionally, alignments.

    Args:
        train: data directory of the split, with ``feats.scp``, ``text`` and, optionally,
            ``utt2spk``. None: the split is empty.
        valid: as ``train``.
        test: as ``train``.
        alignments: ``.scp``, ``.ark`` or ``.gz`` files of integer vectors, or folders of
            ``ali*.gz``, ``ali*.ark`` or ``ali*.scp``. They contain the pdf of each frame of
            ``feats.scp``, as the output of Kaldi's ``ali-to-pdf``. Other utterances have no
            targets.
        phones: file with a phone per line, silence (``sil``) first. The number of a pdf must be
            ``phone * states_per_phone + state``. None: each pdf is a phone of one state, which is
            sufficient for frame errors, but not for decoding.
        states_per_phone: number of states of each phone.
        lexicon: path of a dictionary, ``"espeak"`` or ``"graphemes"`` (``lexicon_for``).
        frame_shift_s: seconds between frames of ``feats.scp``.
        flat_start: whether utterances without alignment have uniform senones. Needs ``phones``.
        stack: number of frames in a stack.
        subsample: number of frames for each frame of the model.
        normalisation: ``"global"``, ``"speaker"`` or ``"none"``.
        fitted: values of the training corpus of the model that is evaluated. None: training.

    Raises:
        FileNotFoundError: a file of a directory is missing.
        ValueError: all splits are None, files do not match, or an entry is a command, which is
            never run.
    """
    folders = {
        split: Path(folder)
        for split, folder in (("train", train), ("valid", valid), ("test", test))
        if folder is not None
    }
    if not folders:
        raise ValueError("at least one of train, valid and test must be given, got none")
    if flat_start and phones is None:
        raise ValueError("flat_start=True needs phones, a file with a phone per line")
    aligned = _read_alignments(alignments)
    recordings = tuple(
        recording
        for split, folder in folders.items()
        for recording in _read_directory(folder, split, aligned)
    )
    recorded = RecordedCorpus(
        name="kaldi",
        recordings=recordings,
        senones=_senones(phones, states_per_phone, aligned),
        lexicon=lexicon_for((word for r in recordings for word in r.words), lexicon),
        frame_shift_s=frame_shift_s,
    )
    recorded = recorded.as_fitted(fitted)
    if flat_start:
        recorded = recorded.flat_start()
    return recorded.finish(Stacking(stack, subsample), normalisation, fitted)


def _read_directory(
    folder: Path, split: str, aligned: dict[str, torch.Tensor]
) -> Iterator[Recording]:
    text = {key: tuple(rest.split()) for key, rest in _table(folder / "text").items()}
    has_speakers = (folder / "utt2spk").is_file()
    speakers = _table(folder / "utt2spk") if has_speakers else {}
    for key, rxfilename in _table(folder / "feats.scp").items():
        if key not in text:
            raise ValueError(f"{folder / 'text'} lacks utterance {key} of feats.scp")
        matrix = read_rxfilename(rxfilename, folder)
        features = torch.from_numpy(np.array(matrix, dtype=np.float32))
        senones = aligned.get(key)
        if senones is not None and senones.shape[0] != features.shape[0]:
            raise ValueError(
                f"utterance {key} has {features.shape[0]} frames in {folder / 'feats.scp'} and "
                f"{senones.shape[0]} in its alignment; both must be at the same frame rate"
            )
        yield Recording(
            key=key,
            speaker=speakers.get(key, "unknown"),
            split=split,
            words=text[key],
            features=features,
            senones=senones,
        )


def _table(path: Path) -> dict[str, str]:
    """Read a text table with lines of a key, white space and a value."""
    if not path.is_file():
        raise FileNotFoundError(f"Kaldi data directory {path.parent} lacks {path.name}")
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = [line.split(maxsplit=1) for line in lines if line.strip()]
    return {key: (rest[0] if rest else "") for key, *rest in fields}


def _read_alignments(alignments: str | Path | list[str] | None) -> dict[str, torch.Tensor]:
    if alignments is None:
        return {}
    paths = alignments if isinstance(alignments, list) else [alignments]
    aligned: dict[str, torch.Tensor] = {}
    for file in (file for path in paths for file in _alignment_files(Path(path))):
        for key, vector in _vectors(file):
            if vector.ndim != 1 or not np.issubdtype(vector.dtype, np.integer):
                raise ValueError(f"{file}: {key} must be a vector of integers, got {vector.dtype}")
            aligned[key] = torch.from_numpy(vector.astype(np.int64))
    return aligned


def _alignment_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    for pattern in ("ali*.gz", "ali*.ark", "ali*.scp"):
        if files := sorted(path.glob(pattern)):
            return files
    raise FileNotFoundError(f"{path} is neither a file nor a folder of ali*.gz, .ark or .scp")


def _vectors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    if file.suffix == ".scp":
        for key, rxfilename in _table(file).items():
            yield key, read_rxfilename(rxfilename, file.parent)
    else:
        yield from read_archive(file)


def _senones(
    phones: str | Path | None, states_per_phone: int, aligned: dict[str, torch.Tensor]
) -> SenoneMap:
    pdfs = 1 + max((int(vector.max()) for vector in aligned.values() if len(vector)), default=0)
    if phones is None:
        return SenoneMap((SILENCE, *(f"pdf-{pdf}" for pdf in range(1, pdfs))), 1)
    senones = SenoneMap(tuple(Path(phones).read_text(encoding="utf-8").split()), states_per_phone)
    if pdfs > len(senones):
        raise ValueError(
            f"the alignments have {pdfs} pdfs, {len(senones.phones)} phones of {states_per_phone} "
            f"states have {len(senones)}"
        )
    return senones
