"""Context-sensitive chunks: cutting utterances up for bidirectional networks, and joining again.

In training an utterance is cut into disjoint chunks, each fed with some context on both sides that
gives no output (bmuf, section 3.1: "21-64+21"). In decoding equally long windows overlap, and where
two windows speak about one frame their log posteriors are averaged, the weight passing linearly
from the earlier window to the later one.

Both start from an utterance whose edges are extended by repeated frames (:func:`extend_edges`), so
that every chunk has the same length and what comes out for an utterance does not depend on what
else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from examples.acoustic.models.edges import extend_edges


@dataclass(frozen=True, kw_only=True)
class ChunkShape:
    """How utterances are cut.

    Args:
        chunk: frames of a chunk that give outputs in training.
        left: frames of past context.
        right: frames of future context.
        overlap: frames that two neighbouring windows share in decoding.

    Raises:
        ValueError: for sizes that leave nothing to cut or no step between windows.
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
        """Frames that go into the network at once."""
        return self.left + self.chunk + self.right

    @property
    def hop(self) -> int:
        """Frames from one decoding window to the next."""
        return self.window - self.overlap


def training_chunks(features: Tensor, lengths: Tensor, shape: ChunkShape) -> tuple[Tensor, Tensor]:
    """Cut a batch into disjoint chunks with context.

    Args:
        features: (B, T, D).
        lengths: (B,) frames of each utterance.
        shape: the sizes.

    Returns:
        Chunks (B, K, window, D) with K = ceil(T / chunk), and a mask (B, K) of those that hold at
        least one frame of their utterance.
    """
    num_frames = features.shape[1]
    count = -(-num_frames // shape.chunk)
    missing = count * shape.chunk - num_frames
    extended = extend_edges(features, lengths, left=shape.left, right=shape.right + missing)
    chunks = extended.unfold(1, shape.window, shape.chunk).transpose(2, 3)
    start = torch.arange(count, device=features.device) * shape.chunk
    return chunks, start < lengths.to(features.device).unsqueeze(1)


def join_chunks(outputs: Tensor, num_frames: int, shape: ChunkShape) -> Tensor:
    """Put the chunks' own frames side by side and drop the context.

    Args:
        outputs: (B, K, window, S).
        num_frames: T of the batch.
        shape: the sizes.

    Returns:
        (B, T, S): every frame once.
    """
    own = outputs[:, :, shape.left : shape.left + shape.chunk]
    return own.flatten(1, 2)[:, :num_frames]


def decoding_windows(features: Tensor, lengths: Tensor, shape: ChunkShape) -> tuple[Tensor, Tensor]:
    """Cut a batch into overlapping windows that cover the utterances and their edge context.

    Args:
        features: (B, T, D).
        lengths: (B,) frames of each utterance.
        shape: the sizes.

    Returns:
        Windows (B, K, window, D), the first from frame -left on, and a mask (B, K) of those that
        their utterance needs: the first, and each that reaches beyond the windows before it.
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
    """Average overlapping windows' log posteriors with weights that cross-fade.

    Args:
        log_posteriors: (B, K, window, S).
        needed: (B, K) mask of :func:`decoding_windows`; other windows are left out.
        num_frames: T of the batch.
        shape: the sizes.

    Returns:
        (B, T, S); a frame of only one window keeps that window's values.
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
    own = slice(shape.left, shape.left + num_frames)
    # Beyond an utterance's length no window may speak: 0 / 1 instead of 0 / 0.
    return combined[:, own] / weights[:, own].clamp(min=1.0)
