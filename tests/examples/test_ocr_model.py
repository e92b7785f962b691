"""Tests of the text line model: shapes, independence of padding, loss, learning."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from examples.ocr.alphabet import Alphabet
from examples.ocr.ctc import ctc_losses
from examples.ocr.line import Batch
from examples.ocr.model import DarkNetDBLSTM


def small(**options: object) -> DarkNetDBLSTM:
    torch.manual_seed(0)
    return DarkNetDBLSTM.small(**{"height": 24, "cells": 8, **options})


def paper() -> DarkNetDBLSTM:
    torch.manual_seed(0)
    return DarkNetDBLSTM(num_classes=96, height=60)


def batch_of(widths: list[int], texts: list[str], height: int = 24) -> Batch:
    """Lines of noise, padded with ink, which must not affect outputs."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(len(widths), 1, height, max(widths), generator=generator)
    for row, width in enumerate(widths):
        images[row, :, :, width:] = 0.7
    targets = [torch.tensor(Alphabet().encode(text), dtype=torch.int64) for text in texts]
    return Batch(
        images,
        torch.tensor(widths),
        nn.utils.rnn.pad_sequence(targets, batch_first=True),
        torch.tensor([len(text) for text in texts]),
        torch.arange(len(widths)),
    )


def with_statistics(model: DarkNetDBLSTM, height: int) -> DarkNetDBLSTM:
    """Update the statistics of BatchNorm, as training does, and switch to evaluation mode."""
    model.train()
    with torch.no_grad():
        for _ in range(5):
            model(torch.rand(2, 1, height, 64), torch.tensor([64, 40]))
    return model.eval()


@pytest.mark.parametrize(
    ("build", "height"),
    [
        (small, 24),
        (lambda: small(downsampling="pool"), 24),
        (lambda: small(convolutions=(1, 2, 3)), 24),
        (paper, 60),
    ],
)
def test_outputs_of_a_line_do_not_depend_on_padding(build, height: int) -> None:
    model = with_statistics(build(), height)
    widths = [83, 41, 64, 16]
    batch = batch_of(widths, ["a"] * 4, height)
    together, frames = model(batch.images, batch.widths)
    assert together.shape == (-(-83 // model.subsample), 4, 96)
    for row, width in enumerate(widths):
        assert frames[row] == -(-width // model.subsample)
        alone, _ = model(batch.images[row : row + 1, :, :, :width], torch.tensor([width]))
        torch.testing.assert_close(alone[:, 0], together[: frames[row], row], atol=1e-5, rtol=1e-4)


def uniform(frames: int, lines: int, classes: int = 3) -> Tensor:
    return torch.full((frames, lines, classes), -math.log(classes), requires_grad=True)


def test_a_line_too_long_for_its_frames_has_neither_loss_nor_gradient() -> None:
    log_probs = uniform(2, 2)
    losses, alignable = ctc_losses(
        log_probs, torch.tensor([2, 2]), torch.tensor([[1, 1], [1, 2]]), torch.tensor([2, 2])
    )
    assert alignable.tolist() == [False, True]
    assert losses[0] == 0
    losses.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad[:, 0].abs().max() == 0
    assert log_probs.grad[:, 1].abs().max() > 0
