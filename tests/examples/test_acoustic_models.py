"""Shapes, sizes, context and independence of padding of the acoustic models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from examples.acoustic.models import (
    BLSTMAcousticModel,
    DNNAcousticModel,
    FrameClassifier,
    LSTMAcousticModel,
)

SENONES = 6
DIM = 4


def small_lstm() -> FrameClassifier:
    return LSTMAcousticModel(feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=2)


def small_blstm() -> FrameClassifier:
    return BLSTMAcousticModel(
        feature_dim=DIM,
        num_senones=SENONES,
        hidden_dim=5,
        num_layers=2,
        chunk=8,
        left=3,
        right=3,
        overlap=4,
    )


def small_dnn() -> FrameClassifier:
    return DNNAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=2, context=2
    )


EVERY_MODEL = pytest.mark.parametrize("build", [small_lstm, small_blstm, small_dnn])


@EVERY_MODEL
@pytest.mark.parametrize("training", [True, False])
def test_scores_do_not_depend_on_the_rest_of_the_batch(
    build: Callable[[], FrameClassifier], training: bool
) -> None:
    torch.manual_seed(0)
    model = build().double().train(training)
    lengths = torch.tensor([37, 1, 3, 20])
    features = torch.randn(4, 37, DIM, dtype=torch.float64)
    together = model(features, lengths)
    assert together.shape == (4, 37, SENONES) and together.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        alone = model(features[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-12, atol=1e-12)


def frames_that_matter(model: FrameClassifier, frame: int, num_frames: int) -> list[int]:
    """Input frames on which the scores of ``frame`` depend, by the gradient."""
    features = torch.randn(1, num_frames, DIM, requires_grad=True)
    model(features, torch.tensor([num_frames]))[0, frame].square().sum().backward()
    assert features.grad is not None
    nonzero: Tensor = features.grad[0].abs().sum(dim=1).nonzero()
    return nonzero.flatten().tolist()


def without_delay() -> FrameClassifier:
    return LSTMAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=1, delay=0
    )


@pytest.mark.parametrize(
    ("build", "frame", "frames", "seen"),
    [
        # The past and three frames of the future, of which the last is read again at the end.
        (small_lstm, 0, 10, range(4)),
        (small_lstm, 6, 10, range(10)),
        (small_lstm, 9, 10, range(10)),
        (without_delay, 4, 10, range(5)),
        (small_dnn, 5, 12, range(3, 8)),
        (small_dnn, 0, 12, range(3)),
        # Frame 10 lies in the chunk of frames 8 to 15; three more on either side are its context.
        (small_blstm, 10, 40, range(5, 19)),
    ],
)
def test_frame_depends_on_its_context_alone(
    build: Callable[[], FrameClassifier], frame: int, frames: int, seen: range
) -> None:
    torch.manual_seed(0)
    assert frames_that_matter(build().train(), frame, frames) == list(seen)


def test_lstm_delay_repeats_the_last_frame() -> None:
    torch.manual_seed(0)
    model = small_lstm()
    assert isinstance(model, LSTMAcousticModel)
    features = torch.randn(1, 5, DIM)
    by_hand = torch.cat([features, features[:, -1:].expand(1, 3, DIM)], dim=1)
    hidden, _ = model.lstm(by_hand)
    expected = model.affine(hidden)[:, 3:]
    torch.testing.assert_close(model(features, torch.tensor([5])), expected)


def test_dnn_splices_frames_in_order() -> None:
    torch.manual_seed(0)
    model = small_dnn()
    assert isinstance(model, DNNAcousticModel)
    features = torch.randn(1, 5, DIM)
    spliced = torch.cat([features[0, 1], features[0, 2], *features[0, 3:5], features[0, 4]])
    expected = model.affine(model.hidden(spliced))
    torch.testing.assert_close(model(features, torch.tensor([5]))[0, 3], expected)


def test_max_norm_holds_after_every_update_and_touches_hidden_layers_only() -> None:
    torch.manual_seed(0)
    model = DNNAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=2, max_norm=0.5
    )
    optimizer = model.configure_optimizers()["optimizer"]
    output_before = model.affine.weight.norm(dim=1).max()
    model(torch.randn(1, 9, DIM), torch.tensor([9])).square().sum().backward()
    optimizer.step()
    norms = torch.cat([layer.weight.norm(dim=1) for layer in model.hidden_layers])
    assert norms.max() <= 0.5 + 1e-6
    assert model.affine.weight.norm(dim=1).max() > 0.5 * output_before


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LSTMAcousticModel(delay=-1, hidden_dim=2), "delay must be at least 0 frames"),
        (lambda: LSTMAcousticModel(num_senones=0, hidden_dim=2), "num_senones must be at least 1"),
        (lambda: DNNAcousticModel(hidden_dim=2, context=-1), "context must be at least 0 frames"),
        (lambda: DNNAcousticModel(hidden_dim=2, num_layers=0), "num_layers must be at least 1"),
        (lambda: DNNAcousticModel(hidden_dim=2, max_norm=0.0), "max_norm must be above 0"),
        (lambda: BLSTMAcousticModel(hidden_dim=2, chunk=0), "chunk must be at least 1 frame"),
        (lambda: BLSTMAcousticModel(hidden_dim=2, left=-1), "left and right must be at least 0"),
        (lambda: BLSTMAcousticModel(hidden_dim=2, overlap=54), "overlap must lie between 0 and"),
    ],
)
def test_wrong_values_are_refused(build: Callable[[], FrameClassifier], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
