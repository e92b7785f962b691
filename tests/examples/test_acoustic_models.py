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


@pytest.mark.parametrize(
    ("model", "sizes", "millions", "parameters"),
    [
        (LSTMAcousticModel, (192, 3183), 24, 24_301_935),
        (BLSTMAcousticModel, (52, 9304), 11, 11_715_672),
        (DNNAcousticModel, (52, 18002), 63, 63_237_714),
    ],
)
def test_default_sizes_are_the_papers(
    model: type[FrameClassifier], sizes: tuple[int, int], millions: int, parameters: int
) -> None:
    with torch.device("meta"):
        built = model(feature_dim=sizes[0], num_senones=sizes[1])  # type: ignore[call-arg]
    count = sum(parameter.numel() for parameter in built.parameters())
    assert count == parameters
    assert count // 1_000_000 == millions


@EVERY_MODEL
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("num_frames", [1, 3, 8, 17, 40])
def test_one_score_per_frame_and_senone(
    build: Callable[[], FrameClassifier], training: bool, num_frames: int
) -> None:
    torch.manual_seed(0)
    model = build().train(training)
    lengths = torch.tensor([num_frames, max(num_frames // 2, 1)])
    logits = model(torch.randn(2, num_frames, DIM), lengths)
    assert logits.shape == (2, num_frames, SENONES)
    assert logits.isfinite().all()


@EVERY_MODEL
@pytest.mark.parametrize("training", [True, False])
def test_scores_do_not_depend_on_the_rest_of_the_batch(
    build: Callable[[], FrameClassifier], training: bool
) -> None:
    torch.manual_seed(0)
    model = build().double().train(training)
    lengths = torch.tensor([37, 5, 11, 20])
    features = torch.randn(4, 37, DIM, dtype=torch.float64)
    together = model(features, lengths)
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


@pytest.mark.parametrize("frame", [0, 4, 6])
def test_lstm_sees_the_past_and_three_frames_of_the_future(frame: int) -> None:
    torch.manual_seed(0)
    model = small_lstm()
    assert frames_that_matter(model, frame, 10) == list(range(frame + 4))


@pytest.mark.parametrize("frame", [7, 8, 9])
def test_lstm_reads_the_last_frame_again_at_the_end(frame: int) -> None:
    torch.manual_seed(0)
    assert frames_that_matter(small_lstm(), frame, 10) == list(range(10))


def test_lstm_delay_repeats_the_last_frame() -> None:
    torch.manual_seed(0)
    model = small_lstm()
    assert isinstance(model, LSTMAcousticModel)
    features = torch.randn(1, 5, DIM)
    by_hand = torch.cat([features, features[:, -1:].expand(1, 3, DIM)], dim=1)
    hidden, _ = model.lstm(by_hand)
    expected = model.affine(hidden)[:, 3:]
    torch.testing.assert_close(model(features, torch.tensor([5])), expected)


def test_lstm_without_delay_sees_no_future() -> None:
    torch.manual_seed(0)
    model = LSTMAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=1, delay=0
    )
    assert frames_that_matter(model, 4, 10) == list(range(5))


def test_dnn_sees_its_spliced_frames_in_order() -> None:
    torch.manual_seed(0)
    model = small_dnn()
    assert frames_that_matter(model, 5, 12) == [3, 4, 5, 6, 7]
    assert frames_that_matter(model, 0, 12) == [0, 1, 2]
    assert isinstance(model, DNNAcousticModel)
    features = torch.randn(1, 5, DIM)
    spliced = torch.cat([features[0, 1], features[0, 2], *features[0, 3:5], features[0, 4]])
    expected = model.affine(model.hidden(spliced))
    torch.testing.assert_close(model(features, torch.tensor([5]))[0, 3], expected)


def test_blstm_sees_its_chunk_and_context_in_training() -> None:
    torch.manual_seed(0)
    model = small_blstm().train()
    # Frame 10 lies in the chunk of frames 8 to 15; three more on either side are its context.
    assert frames_that_matter(model, 10, 40) == list(range(5, 19))


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


def test_max_norm_leaves_small_weights_alone() -> None:
    torch.manual_seed(0)
    model = DNNAcousticModel(
        feature_dim=DIM, num_senones=SENONES, hidden_dim=8, num_layers=2, max_norm=100.0
    )
    before = [layer.weight.clone() for layer in model.hidden_layers]
    model.constrain_weights()
    for layer, weight in zip(model.hidden_layers, before, strict=True):
        assert torch.equal(layer.weight, weight)


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
