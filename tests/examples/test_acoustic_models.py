"""Tests of the acoustic model: context, independence of padding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from examples.acoustic.models import LSTMAcousticModel

SENONES = 6
DIM = 4


def small_lstm(num_layers: int = 2, delay: int = 3) -> LSTMAcousticModel:
    return LSTMAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=num_layers, delay=delay
    )


@pytest.mark.parametrize("training", [True, False])
def test_scores_do_not_depend_on_the_rest_of_the_batch(training: bool) -> None:
    torch.manual_seed(0)
    model = small_lstm().double().train(training)
    lengths = torch.tensor([37, 1, 3, 20])
    features = torch.randn(4, 37, DIM, dtype=torch.float64)
    together = model(features, lengths)
    assert together.shape == (4, 37, SENONES) and together.isfinite().all()
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
