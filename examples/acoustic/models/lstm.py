"""The unidirectional LSTM acoustic model of two_tiered_bmuf_gtc, section 3.2."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.edges import extend_edges


class LSTMAcousticModel(FrameClassifier):
    """Stacked LSTM, affine layer, softmax over senones, output delayed by a few frames.

    With ``delay = 3`` the network answers for frame t after it has read frame t + 3, so the label
    of a frame is predicted with three frames of its future. For an utterance's last frames the
    missing future is its last frame, repeated.

    The paper's size is the default: five layers of 768; with 192 inputs and 3183 senones about 24
    million parameters.

    Args:
        feature_dim: D, inputs per frame; None takes it from the data.
        num_senones: S, classes; None takes it from the data.
        hidden_dim: cells per layer.
        num_layers: LSTM layers.
        delay: frames of the future that a prediction may use.
        dropout: between LSTM layers.
        training_options: see :class:`FrameClassifier`.

    Raises:
        ValueError: when ``delay`` is negative.
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
        """Score every frame.

        Args:
            features: (B, T, D), utterance b in its first ``lengths[b]`` frames.
            lengths: (B,).

        Returns:
            (B, T, S) logits; entry t has seen the frames up to t + ``delay``.
        """
        hidden, _ = self.lstm(extend_edges(features, lengths, left=0, right=self.delay))
        logits: Tensor = self.affine(hidden[:, self.delay :])
        return logits
