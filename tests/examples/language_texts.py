"""A small folder of text, its data module and a model, for tests of the language example."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from examples.language.data_module import Text
from examples.language.model import LanguageModel

WORDS = (
    "the gradient of a block is sent across hosts, and each worker — für größere Modelle".split()
)


def write_texts(folder: Path, *, files: int = 60, words: int = 40, seed: int = 0) -> Path:
    """Write files of random words, some not in ASCII, and return the folder."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = " ".join(draw.choices(WORDS, k=words))
        (folder / f"text{number:03d}.txt").write_text(text + "\n", encoding="utf-8")
    return folder


def small_data(folder: Path, **settings: Any) -> Text:
    """Data module of windows of 16 tokens over the files of a folder, with a cache beside it."""
    given: dict[str, Any] = {
        "corpus": "folder",
        "corpus_args": {"path": str(folder)},
        "context": 16,
        "batch_windows": 8,
        "cache_dir": str(folder.parent / "cache"),
    }
    return Text(**{**given, **settings})


def small_model(**settings: Any) -> LanguageModel:
    """Model of two layers of width 16."""
    given: dict[str, Any] = {"layers": 2, "heads": 2, "width": 16, "learning_rate": 1e-2}
    return LanguageModel(**{**given, **settings})
