"""Context beyond the ends of an utterance, by repetition of its first and last frames."""

from __future__ import annotations

import torch
from torch import Tensor


def extend_edges(features: Tensor, lengths: Tensor, *, left: int, right: int) -> Tensor:
    """Extend every utterance of a padded batch by copies of its first and last frames.

    Padding is replaced by copies of the last frame as well. So the result for an utterance does not
    depend on the rest of the batch.

    Args:
        features: (B, T, D) features; utterance b has ``lengths[b]`` frames.
        lengths: (B,) number of frames of each utterance.
        left: number of copies of the first frame before it.
        right: number of copies of the last frame after frame T.

    Returns:
        (B, left + T + right, D) features, with frame t of the input at left + t.
    """
    batch, num_frames, dim = features.shape
    position = torch.arange(-left, num_frames + right, device=features.device)
    last = (lengths.to(features.device) - 1).clamp(min=0)
    source = torch.minimum(position.clamp(min=0).unsqueeze(0), last.unsqueeze(1))
    return features.gather(1, source.unsqueeze(2).expand(batch, source.shape[1], dim))
