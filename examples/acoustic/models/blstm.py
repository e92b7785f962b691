"""The deep bidirectional LSTM acoustic model of bmuf, section 3.1."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.chunks import (
    ChunkShape,
    combine_windows,
    decoding_windows,
    join_chunks,
    training_chunks,
)


class BLSTMAcousticModel(FrameClassifier):
    """Stacked bidirectional LSTM on context-sensitive chunks, affine layer, softmax over senones.

    In training mode every utterance is cut into chunks of ``chunk`` frames that are read together
    with ``left`` past and ``right`` future frames; the context gives no outputs, so each frame is
    in the loss once. In evaluation mode windows of the same total length overlap by ``overlap``
    frames and their log posteriors are averaged where they do. At an utterance's ends the context
    is its first or last frame, repeated.

    The paper's size is the default: five layers of 256 + 256; with 52 inputs and 9304 senones about
    11 million parameters.

    Args:
        feature_dim: D, inputs per frame; None takes it from the data.
        num_senones: S, classes; None takes it from the data.
        hidden_dim: cells per layer and direction.
        num_layers: bidirectional layers.
        chunk: frames of a training chunk that give outputs.
        left: past frames of context.
        right: future frames of context.
        overlap: frames that neighbouring windows share in decoding.
        dropout: between layers.
        training_options: see :class:`FrameClassifier`.

    Raises:
        ValueError: for chunk sizes out of range.
    """

    def __init__(
        self,
        *,
        feature_dim: int | None = None,
        num_senones: int | None = None,
        hidden_dim: int = 256,
        num_layers: int = 5,
        chunk: int = 64,
        left: int = 21,
        right: int = 21,
        overlap: int = 32,
        dropout: float = 0.0,
        **training_options: Any,
    ) -> None:
        super().__init__(**training_options)
        self.save_hyperparameters()
        self.chunk_shape = ChunkShape(chunk=chunk, left=left, right=right, overlap=overlap)
        self.hidden_dim = hidden_dim
        self.num_layers = num_layers
        self.dropout = dropout
        self.take_sizes(feature_dim=feature_dim, num_senones=num_senones)

    def _layers(self, feature_dim: int, num_senones: int) -> None:
        self.lstm = nn.LSTM(
            feature_dim,
            self.hidden_dim,
            self.num_layers,
            batch_first=True,
            dropout=self.dropout,
            bidirectional=True,
        )
        self.affine = nn.Linear(2 * self.hidden_dim, num_senones)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Score every frame, by chunks in training mode and by overlapping windows otherwise.

        Args:
            features: (B, T, D), utterance b in its first ``lengths[b]`` frames.
            lengths: (B,).

        Returns:
            (B, T, S) logits (in evaluation mode averaged log posteriors, which serve as logits);
            zeros in chunks that lie wholly beyond an utterance's end.
        """
        num_frames = features.shape[1]
        if self.training:
            chunks, needed = training_chunks(features, lengths, self.chunk_shape)
            return join_chunks(self._score(chunks, needed), num_frames, self.chunk_shape)
        windows, needed = decoding_windows(features, lengths, self.chunk_shape)
        scores = functional.log_softmax(self._score(windows, needed).float(), dim=-1)
        return combine_windows(scores, needed, num_frames, self.chunk_shape)

    def _score(self, chunks: Tensor, needed: Tensor) -> Tensor:
        """Score chunks (B, K, W, D) to (B, K, W, S), computing those marked in ``needed`` only."""
        hidden, _ = self.lstm(chunks[needed])
        logits: Tensor = self.affine(hidden)
        scores = logits.new_zeros(*chunks.shape[:3], logits.shape[-1])
        scores[needed] = logits
        return scores
