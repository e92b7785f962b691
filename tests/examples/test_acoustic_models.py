"""Tests of the acoustic model: context, independence of padding, and averages in a Trainer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, seed_everything
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from examples.acoustic.corpus import Utterance, collate
from examples.acoustic.lexicon import SenoneMap
from examples.acoustic.model import LSTMAcousticModel
from examples.quiet import quiet_trainer

SENONES = SenoneMap(("sil", "a", "b"), states_per_phone=1)
DIM = 5


def small_lstm(num_layers: int = 2, delay: int = 3) -> LSTMAcousticModel:
    return LSTMAcousticModel(
        feature_dim=DIM, num_senones=len(SENONES), hidden_dim=8, num_layers=num_layers, delay=delay
    )


@pytest.mark.parametrize("training", [True, False])
def test_scores_do_not_depend_on_the_rest_of_the_batch(training: bool) -> None:
    torch.manual_seed(0)
    model = small_lstm().double().train(training)
    lengths = torch.tensor([37, 1, 3, 20])
    features = torch.randn(4, 37, DIM, dtype=torch.float64)
    together = model(features, lengths)
    assert together.shape == (4, 37, len(SENONES)) and together.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        alone = model(features[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-12, atol=1e-12)


def frames_that_matter(model: LSTMAcousticModel, frame: int, num_frames: int) -> list[int]:
    """Input frames on which the scores of ``frame`` depend, by the gradient."""
    features = torch.randn(1, num_frames, DIM, requires_grad=True)
    model(features, torch.tensor([num_frames]))[0, frame].square().sum().backward()
    assert features.grad is not None
    nonzero: Tensor = features.grad[0].abs().sum(dim=1).nonzero()
    return nonzero.flatten().tolist()


@pytest.mark.parametrize(
    ("delay", "frame", "seen"),
    [
        # The past and three frames of the future. At the end, the last frame is repeated.
        (3, 0, range(4)),
        (3, 6, range(10)),
        (3, 9, range(10)),
        (0, 4, range(5)),
    ],
)
def test_frame_depends_on_its_context_alone(delay: int, frame: int, seen: range) -> None:
    torch.manual_seed(0)
    model = small_lstm(num_layers=1, delay=delay).train()
    assert frames_that_matter(model, frame, 10) == list(seen)


def utterance(number: int) -> Utterance:
    """Utterance of 12 or more frames, four for each senone, with one-hot features and noise."""
    generator = torch.Generator().manual_seed(number)
    senones = torch.randint(3, (3 + number % 5,), generator=generator).repeat_interleave(4)
    features = functional.one_hot(senones, DIM) + 0.1 * torch.randn(
        len(senones), DIM, generator=generator
    )
    words = tuple("ab"[senone - 1] for senone in senones.tolist() if senone > 0)
    return Utterance(key=f"u{number}", speaker="s", features=features, words=words, senones=senones)


@dataclass
class TinyCorpus:
    senones: SenoneMap = SENONES
    train: list[Utterance] = field(default_factory=lambda: [utterance(i) for i in range(24)])
    valid: list[Utterance] = field(default_factory=lambda: [utterance(i) for i in range(100, 107)])
    test: list[Utterance] = field(default_factory=lambda: [utterance(i) for i in range(200, 207)])


class TinyData(LightningDataModule):
    def __init__(self, corpus: Any = None) -> None:
        super().__init__()
        self.corpus = corpus or TinyCorpus()

    def train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.corpus.train)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.corpus.valid)

    def test_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.corpus.test)

    def _loader(self, split: list[Utterance]) -> DataLoader[Any]:
        # Seven utterances of unequal length, so the mean of the means of batches would be wrong.
        return DataLoader(
            range(len(split)),
            batch_size=3,
            collate_fn=lambda index: collate([split[i] for i in index], index),
        )


def reference(model: LSTMAcousticModel, split: list[Utterance]) -> tuple[float, float]:
    """Loss and frame error rate of a split, one utterance at a time, frames counted equally."""
    total, errors, frames = 0.0, 0, 0
    with torch.no_grad():
        for each in split:
            assert each.senones is not None
            logits = model.eval()(each.features[None], torch.tensor([len(each)]))[0]
            total += float(functional.cross_entropy(logits, each.senones, reduction="sum"))
            errors += int((logits.argmax(dim=1) != each.senones).sum())
            frames += len(each)
    return total / frames, errors / frames


def test_training_learns_and_logs_exact_averages() -> None:
    seed_everything(0)
    model = LSTMAcousticModel(
        feature_dim=DIM, num_senones=3, hidden_dim=8, num_layers=1, learning_rate=0.3
    )
    data = TinyData()
    fit = quiet_trainer(max_epochs=30, gradient_clip_val=1.0)
    fit.fit(model, datamodule=data)
    loss, error_rate = reference(model, data.corpus.valid)
    assert float(fit.callback_metrics["valid/loss"]) == pytest.approx(loss, rel=1e-5)
    assert float(fit.callback_metrics["valid/frame_error_rate"]) == pytest.approx(error_rate)
    assert loss < 0.5 * math.log(3)
    assert {"train/loss", "train/step_loss", "train/frame_error_rate"} <= set(fit.callback_metrics)
    [tested] = fit.test(model, datamodule=data, verbose=False)
    loss, error_rate = reference(model, data.corpus.test)
    assert tested["test/loss"] == pytest.approx(loss, rel=1e-5)
    assert tested["test/frame_error_rate"] == pytest.approx(error_rate)
    assert "test/word_error_rate" not in tested
