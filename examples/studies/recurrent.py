"""A recurrent language model trained by SGD with momentum, for the study of defaults."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from examples.language.model import LanguageModel


class Recurrent(nn.Module):
    """Embedding, one LSTM layer, and an output layer.

    Args:
        vocabulary: number of tokens.
        width: number of cells.

    """

    def __init__(self, vocabulary: int, width: int = 160) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 64)
        self.lstm = nn.LSTM(64, width, batch_first=True)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, vocabulary) of the next token, for tokens (B, T)."""
        hidden, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.output(hidden)
        return logits


class RecurrentLanguageModel(LanguageModel):
    """:class:`Recurrent` in place of the transformer, and SGD with momentum in place of AdamW."""

    def _build(self, *, vocabulary: int, context: int) -> None:
        super()._build(vocabulary=vocabulary, context=context)
        self.transformer = Recurrent(vocabulary)  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum, and the schedule of the learning rate."""
        rate = self._adamw["lr"]
        optimizer = torch.optim.SGD(self.transformer.parameters(), lr=rate, momentum=0.9)
        return self.with_schedule(optimizer)
