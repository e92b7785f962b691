"""Tests of the language model: causality, attention, optimizer, scores."""

from __future__ import annotations

import math
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from examples.language.documents import split_of
from examples.language.model import LanguageModel
from examples.quiet import quiet_trainer
from tests.examples.language_texts import small_data, small_model, write_texts
from tests.ranks import run_ranks


def tokens_of(model: LanguageModel, *shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, model.vocabulary, shape))


@torch.no_grad()
def test_logits_do_not_depend_on_later_tokens() -> None:
    model = small_model(vocabulary=11, context=12).double()
    tokens = tokens_of(model, 3, 12)
    before = model(tokens)
    for position in (0, 5, 11):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        after = model(changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position:], before[:, position:])


def scores_on_this_rank(folder: str, world_size: int) -> list[float]:
    """Scores by the Trainer, then scores of the whole stream in float64."""
    pl.seed_everything(0, verbose=False)
    data = small_data(Path(folder), tokenizer="bpe", vocabulary_size=300, eval_batch_windows=3)
    model = small_model()
    trainer = quiet_trainer("ddp" if world_size > 1 else "auto", devices=world_size)
    logged = trainer.validate(model, data, verbose=False)[0]
    corpus = data.corpus
    stream = corpus.splits["valid"]
    token_bytes = corpus.vocabulary.token_bytes
    written = int(token_bytes[stream].sum())
    inputs = np.concatenate([[corpus.vocabulary.end], stream[:-1]])
    nats = 0.0
    model = model.double().eval()
    with torch.no_grad():
        for start in range(0, len(stream), 16):
            logits = model(torch.from_numpy(inputs[None, start : start + 16].astype(np.int64)))[0]
            wanted = torch.from_numpy(stream[start : start + 16].astype(np.int64))
            nats += float(functional.cross_entropy(logits, wanted, reduction="sum"))
    return [
        logged["valid/bits_per_byte"],
        logged["valid/loss"],
        nats / math.log(2) / written,
        nats / len(stream),
        written,
    ]


def test_bits_per_byte_are_those_of_float64_on_any_number_of_ranks(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts")
    (alone,) = run_ranks(scores_on_this_rank, 1, str(folder), 1)
    bits, loss, wanted_bits, wanted_loss, written = alone
    assert bits == pytest.approx(wanted_bits, rel=1e-6)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    files = [file for file in folder.iterdir() if split_of(file.name) == "valid"]
    assert written == sum(file.stat().st_size for file in files) > 0
    for both in run_ranks(scores_on_this_rank, 2, str(folder), 2):
        assert both == pytest.approx(alone, rel=1e-6)
