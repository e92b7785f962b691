"""Context-sensitive chunks of utterances for bidirectional networks.

In training, an utterance is split into disjoint chunks with context on both sides, which has no
outputs (bmuf, section 3.1: "21-64+21"). In decoding, windows of the same length overlap. The log
posteriors of a frame in two windows are averaged, with a weight that moves linearly from the
earlier window to the later one.

In both cases, the ends of utterances are extended by repeated frames (:func:`extend_edges`). So all
chunks have the same length, and the outputs of an utterance do not depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from examples.acoustic.models.edges import extend_edges


@dataclass(frozen=True, kw_only=True)
class ChunkShape:
    """Sizes of chunks and windows.

    Args:
        chunk: frames of a chunk that have outputs in training.
        left: frames of past context.
        right: frames of future context.
        overlap: frames that adjacent windows share in decoding.

    Raises:
        ValueError: a size is out of range.
    """

    chunk: int = 64
    left: int = 21
    right: int = 21
    overlap: int = 32

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.chunk < 1:
            raise ValueError(f"chunk must be at least 1 frame, got {self.chunk}")
        if self.left < 0 or self.right < 0:
            raise ValueError(
                f"left and right must be at least 0 frames, got {self.left} and {self.right}"
            )
        if not 0 <= self.overlap <= self.window // 2:
            raise ValueError(
                f"overlap must lie between 0 and half a window ({self.window // 2} of "
                f"{self.window} frames), got {self.overlap}"
            )

    @property
    def window(self) -> int:
        """Number of frames of an input of the network."""
        return self.left + self.chunk + self.right

    @property
    def hop(self) -> int:
        """Number of frames between the starts of two decoding windows."""
        return self.window - self.overlap


def training_chunks(features: Tensor, lengths: Tensor, shape: ChunkShape) -> tuple[Tensor, Tensor]:
    """Split a batch into disjoint chunks with context.

    Args:
        features: (B, T, D) features of padded utterances.
        lengths: (B,) number of frames of each utterance.
        shape: sizes of the chunks.

    Returns:
        Chunks (B, K, window, D) with K = ceil(T / chunk), and a mask (B, K) of the chunks that
        contain at least one frame of their utterance.
    """
    num_frames = features.shape[1]
    count = -(-num_frames // shape.chunk)
    missing = count * shape.chunk - num_frames
    extended = extend_edges(features, lengths, left=shape.left, right=shape.right + missing)
    chunks = extended.unfold(1, shape.window, shape.chunk).transpose(2, 3)
    start = torch.arange(count, device=features.device) * shape.chunk
    return chunks, start < lengths.to(features.device).unsqueeze(1)


def join_chunks(outputs: Tensor, num_frames: int, shape: ChunkShape) -> Tensor:
    """Concatenate the outputs of chunks without their context.

    Args:
        outputs: (B, K, window, S) outputs of :func:`training_chunks`.
        num_frames: number of frames of the batch, T.
        shape: sizes of the chunks.

    Returns:
        (B, T, S) outputs, one for every frame.
    """
    without_context = outputs[:, :, shape.left : shape.left + shape.chunk]
    return without_context.flatten(1, 2)[:, :num_frames]


def decoding_windows(features: Tensor, lengths: Tensor, shape: ChunkShape) -> tuple[Tensor, Tensor]:
    """Split a batch into overlapping windows that cover the utterances and their context.

    Args:
        features: (B, T, D) features of padded utterances.
        lengths: (B,) number of frames of each utterance.
        shape: sizes of the windows.

    Returns:
        Windows (B, K, window, D), of which the first starts at frame -left, and a mask (B, K) of
        the windows that are needed to cover their utterance.
    """
    num_frames = features.shape[1]
    uncovered = max(shape.left + num_frames + shape.right - shape.window, 0)
    count = 1 + -(-uncovered // shape.hop)
    total = (count - 1) * shape.hop + shape.window
    extended = extend_edges(
        features, lengths, left=shape.left, right=total - shape.left - num_frames
    )
    windows = extended.unfold(1, shape.window, shape.hop).transpose(2, 3)
    index = torch.arange(count, device=features.device)
    covered_before = index * shape.hop + shape.overlap
    to_cover = shape.left + lengths.to(features.device).unsqueeze(1) + shape.right
    needed = (covered_before < to_cover) | (index == 0)
    return windows, needed


def combine_windows(
    log_posteriors: Tensor, needed: Tensor, num_frames: int, shape: ChunkShape
) -> Tensor:
    """Average the log posteriors of overlapping windows.

    In an overlap, the weight moves linearly from the earlier window to the later one.

    Args:
        log_posteriors: (B, K, window, S) log posteriors of :func:`decoding_windows`.
        needed: (B, K) mask of :func:`decoding_windows`. Other windows are ignored.
        num_frames: number of frames of the batch, T.
        shape: sizes of the windows.

    Returns:
        (B, T, S) log posteriors.
    """
    batch, count, window, classes = log_posteriors.shape
    ramp = torch.arange(window, device=log_posteriors.device) + 1.0
    fade = torch.minimum(ramp, ramp.flip(0)).clamp(max=shape.overlap + 1.0)
    weight = needed.unsqueeze(2) * fade.to(log_posteriors.dtype)
    total = (count - 1) * shape.hop + window
    combined = log_posteriors.new_zeros(batch, total, classes)
    weights = log_posteriors.new_zeros(batch, total, 1)
    for k in range(count):
        frames = slice(k * shape.hop, k * shape.hop + window)
        combined[:, frames] += log_posteriors[:, k] * weight[:, k].unsqueeze(2)
        weights[:, frames] += weight[:, k].unsqueeze(2)
    without_context = slice(shape.left, shape.left + num_frames)
    # Weights are 0 beyond the end of an utterance that is shorter than the batch.
    return combined[:, without_context] / weights[:, without_context].clamp(min=1.0)
