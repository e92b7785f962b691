"""Bidirectional LSTM layers over sequences of different lengths, without packing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BidirectionalLSTM(nn.Module):
    """Stacked bidirectional LSTM layers; what lies beyond a sequence never reaches it.

    The backward direction is a forward LSTM over sequences that were reversed within their own
    lengths, so both directions run over dense tensors. On a CPU that is more than twice as fast
    as a packed sequence, and the outputs inside the lengths are the same.

    Args:
        inputs: D, size of the input vectors.
        cells: memory cells per layer and direction.
        layers: bidirectional layers, at least 1.
        dropout: between layers.
    """

    def __init__(self, inputs: int, *, cells: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [inputs, *[2 * cells] * (layers - 1)]
        self.forwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Run all layers.

        Args:
            sequences: (T, B, D).
            lengths: (B,) vectors of each sequence.

        Returns:
            (T, B, 2 cells); meaningless beyond a sequence's length.
        """
        order = reversal(sequences.shape[0], lengths.to(sequences.device))
        hidden = sequences
        for index, (ahead, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            if index:
                hidden = self.dropout(hidden)
            past = ahead(hidden)[0]
            future = reorder(back(reorder(hidden, order))[0], order)
            hidden = torch.cat([past, future], dim=-1)
        return hidden


def reversal(steps: int, lengths: Tensor) -> Tensor:
    """Positions (T, B) that reverse each sequence in its length and leave the rest in place."""
    position = torch.arange(steps, device=lengths.device).unsqueeze(1)
    return torch.where(position < lengths, lengths - 1 - position, position)


def reorder(sequences: Tensor, order: Tensor) -> Tensor:
    """Take position ``order[t, b]`` of sequence b of (T, B, D) as its step t."""
    return sequences.gather(0, order.unsqueeze(2).expand(-1, -1, sequences.shape[2]))
