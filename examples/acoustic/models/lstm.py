"""Unidirectional LSTM acoustic model of two_tiered_bmuf_gtc, section 3.2."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.edges import extend_edges


class LSTMAcousticModel(FrameClassifier):
    """Stacked LSTM, affine layer, softmax over senones, with delayed outputs.

    With ``delay = 3``, the output for frame t is computed at frame t + 3 and so depends on three
    future frames. After the end of an utterance, its last frame is repeated.

    The defaults are those of the paper, five layers of 768 cells. With 192 inputs and 3183 senones,
    the model has about 24 million parameters.

    Args:
        feature_dim: number of features of a frame, D. None: taken from the data.
        num_senones: number of classes, S. None: taken from the data.
        hidden_dim: number of cells of each layer.
        num_layers: number of LSTM layers.
        delay: number of future frames on which an output depends.
        dropout: dropout probability between LSTM layers.
        training_options: arguments of :class:`FrameClassifier`.

    Raises:
        ValueError: ``delay`` is negative.
    """

    def __init__(
        self,
        *,
        feature_dim: int | None = None,
        num_senones: int | None = None,
        hidden_dim: int = 768,
        num_layers: int = 5,
        delay: int = 3,
        dropout: float = 0.0,
        **training_options: Any,
    ) -> None:
        super().__init__(**training_options)
        self.save_hyperparameters()
        if delay < 0:
            raise ValueError(f"delay must be at least 0 frames, got {delay}")
        self.delay = delay
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.dropout = dropout
        self.take_sizes(feature_dim=feature_dim, num_senones=num_senones)

    def _layers(self, feature_dim: int, num_senones: int) -> None:
        size, layers = self.hidden_dim, self.num_layers
        self.lstm = nn.LSTM(feature_dim, size, layers, batch_first=True, dropout=self.dropout)
        self.affine = nn.Linear(size, num_senones)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Compute the logits of every frame.

        Args:
            features: (B, T, D) features; utterance b has ``lengths[b]`` frames.
            lengths: (B,) number of frames of each utterance.

        Returns:
            (B, T, S) logits. Those at t depend on the frames up to t + ``delay``.
        """
        hidden, _ = self.lstm(extend_edges(features, lengths, left=0, right=self.delay))
        logits: Tensor = self.affine(hidden[:, self.delay :])
        return logits
