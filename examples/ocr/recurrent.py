"""Bidirectional LSTM layers over sequences of different lengths, without packing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BidirectionalLSTM(nn.Module):
    """Stacked bidirectional LSTM layers, whose outputs do not depend on padding.

    The backward direction is a forward LSTM over sequences that are reversed within their lengths.
    Both directions therefore use dense tensors. On a CPU, this is more than twice as fast as packed
    sequences, with the same outputs within the lengths.

    Args:
        inputs: D, number of input features.
        cells: memory cells per layer and direction.
        layers: number of bidirectional layers, at least 1.
        dropout: dropout probability between layers.
    """

    def __init__(self, inputs: int, *, cells: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        sizes = [inputs, *[2 * cells] * (layers - 1)]
        self.forwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)
        self.backwards = nn.ModuleList(nn.LSTM(size, cells) for size in sizes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Apply all layers.

        Args:
            sequences: (T, B, D).
            lengths: (B,) length of each sequence.

        Returns:
            Outputs (T, B, 2 * cells), undefined beyond the length of a sequence.
        """
        order = reversal(sequences.shape[0], lengths.to(sequences.device))
        hidden = sequences
        for index, (forward, backward) in enumerate(
            zip(self.forwards, self.backwards, strict=True)
        ):
            if index:
                hidden = self.dropout(hidden)
            past = forward(hidden)[0]
            future = reorder(backward(reorder(hidden, order))[0], order)
            hidden = torch.cat([past, future], dim=-1)
        return hidden


def reversal(steps: int, lengths: Tensor) -> Tensor:
    """Return positions (T, B) that reverse each sequence within its length.

    Positions beyond the length are not changed.
    """
    position = torch.arange(steps, device=lengths.device).unsqueeze(1)
    return torch.where(position < lengths, lengths - 1 - position, position)


def reorder(sequences: Tensor, order: Tensor) -> Tensor:
    """Return sequences (T, B, D) in which step t of sequence b is step ``order[t, b]``."""
    return sequences.gather(0, order.unsqueeze(2).expand(-1, -1, sequences.shape[2]))
