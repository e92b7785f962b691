"""Chunks: every frame once in training, full length and partition of unity in decoding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.acoustic.models.chunks import (
    ChunkShape,
    combine_windows,
    decoding_windows,
    join_chunks,
    training_chunks,
)

shapes = st.builds(
    lambda chunk, left, right, share: ChunkShape(
        chunk=chunk, left=left, right=right, overlap=int(share * ((left + chunk + right) // 2))
    ),
    st.integers(1, 12),
    st.integers(0, 6),
    st.integers(0, 6),
    st.floats(0.0, 1.0),
)
batches = st.lists(st.integers(1, 50), min_size=1, max_size=4)


def numbered(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features whose only value says which frame of which utterance it is; padding is -1."""
    features = torch.full((len(lengths), max(lengths), 1), -1.0, dtype=torch.float64)
    for row, length in enumerate(lengths):
        features[row, :length, 0] = torch.arange(length) + 100.0 * row
    return features, torch.tensor(lengths)


@settings(deadline=None, max_examples=150)
@given(shape=shapes, lengths=batches)
def test_training_chunks_hold_every_frame_exactly_once(
    shape: ChunkShape, lengths: list[int]
) -> None:
    features, sizes = numbered(lengths)
    chunks, needed = training_chunks(features, sizes, shape)
    # A chunk that is left out must hold no frame: make the left-out ones visible.
    kept = torch.where(needed[:, :, None, None], chunks, -7.0)
    joined = join_chunks(kept, features.shape[1], shape)
    assert joined.shape == features.shape
    for row, length in enumerate(lengths):
        assert torch.equal(joined[row, :length], features[row, :length])
        assert needed[row].sum() == -(-length // shape.chunk)


def test_training_chunks_carry_their_context() -> None:
    features, sizes = numbered([10])
    chunks, _ = training_chunks(features, sizes, ChunkShape(chunk=4, left=2, right=1, overlap=2))
    assert chunks[0, :, :, 0].tolist() == [
        [0, 0, 0, 1, 2, 3, 4],
        [2, 3, 4, 5, 6, 7, 8],
        [6, 7, 8, 9, 9, 9, 9],
    ]


@settings(deadline=None, max_examples=150)
@given(shape=shapes, lengths=batches)
def test_windows_combine_to_the_full_length_and_weights_sum_to_one(
    shape: ChunkShape, lengths: list[int]
) -> None:
    features, sizes = numbered(lengths)
    windows, needed = decoding_windows(features, sizes, shape)
    combined = combine_windows(windows, needed, features.shape[1], shape)
    assert combined.shape == features.shape
    # All windows agree on a frame here, so any weights that sum to one give the frame back.
    for row, length in enumerate(lengths):
        torch.testing.assert_close(combined[row, :length], features[row, :length])


def test_weight_passes_from_one_window_to_the_next() -> None:
    shape = ChunkShape(chunk=8, left=0, right=0, overlap=3)
    _, needed = decoding_windows(torch.zeros(1, 13, 1), torch.tensor([13]), shape)
    says = torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1).expand(1, 2, 8, 1)
    combined = combine_windows(says, needed, 13, shape)[0, :, 0]
    torch.testing.assert_close(combined, torch.tensor([0.0] * 5 + [0.25, 0.5, 0.75] + [1.0] * 5))


@pytest.mark.parametrize("overlap", [-1, 54])
def test_overlap_beyond_half_a_window_is_refused(overlap: int) -> None:
    with pytest.raises(ValueError, match=rf"half a window \(53 of 106 frames\), got {overlap}"):
        ChunkShape(overlap=overlap)
