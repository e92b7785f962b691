"""Context beyond the ends of an utterance: its first and last frames, repeated."""

from __future__ import annotations

import torch
from torch import Tensor


def extend_edges(features: Tensor, lengths: Tensor, *, left: int, right: int) -> Tensor:
    """Lengthen every utterance of a padded batch by copies of its first and last frames.

    What an utterance becomes depends on its own frames alone: the batch's padding is overwritten by
    copies of the last frame too.

    Args:
        features: (B, T, D), utterance b in its first ``lengths[b]`` frames.
        lengths: (B,) frames of each utterance.
        left: copies of the first frame put before it.
        right: frames appended to the batch's T; those and the padding become the last frame.

    Returns:
        (B, left + T + right, D); frame t of the input stands at left + t.
    """
    batch, num_frames, dim = features.shape
    position = torch.arange(-left, num_frames + right, device=features.device)
    last = (lengths.to(features.device) - 1).clamp(min=0)
    source = torch.minimum(position.clamp(min=0).unsqueeze(0), last.unsqueeze(1))
    return features.gather(1, source.unsqueeze(2).expand(batch, source.shape[1], dim))
