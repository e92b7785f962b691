"""Deep bidirectional LSTM acoustic model of bmuf, section 3.1."""

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

    In training mode, every utterance is split into chunks of ``chunk`` frames. The input of a chunk
    also contains ``left`` past and ``right`` future frames of context. Context has no outputs, so
    each frame is in the loss once. In evaluation mode, windows of the same total length overlap by
    ``overlap`` frames, and log posteriors are averaged where windows overlap. At the ends of an
    utterance, the context repeats its first or last frame.

    The defaults are those of the paper, five layers of 256 + 256. With 52 inputs and 9304 senones,
    the model has about 11 million parameters.

    Args:
        feature_dim: number of features of a frame, D. None: taken from the data.
        num_senones: number of classes, S. None: taken from the data.
        hidden_dim: number of cells of each layer and direction.
        num_layers: number of bidirectional layers.
        chunk: frames of a training chunk that have outputs.
        left: frames of past context.
        right: frames of future context.
        overlap: frames that adjacent windows share in decoding.
        dropout: dropout probability between layers.
        training_options: arguments of :class:`FrameClassifier`.

    Raises:
        ValueError: a chunk size is out of range.
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
        """Compute the logits of every frame, in chunks or, in evaluation mode, in windows.

        Args:
            features: (B, T, D) features; utterance b has ``lengths[b]`` frames.
            lengths: (B,) number of frames of each utterance.

        Returns:
            (B, T, S) logits. In evaluation mode, they are averaged log posteriors. They are zero in
            chunks that are entirely beyond the end of an utterance.
        """
        num_frames = features.shape[1]
        if self.training:
            chunks, needed = training_chunks(features, lengths, self.chunk_shape)
            return join_chunks(self._score(chunks, needed), num_frames, self.chunk_shape)
        windows, needed = decoding_windows(features, lengths, self.chunk_shape)
        scores = functional.log_softmax(self._score(windows, needed).float(), dim=-1)
        return combine_windows(scores, needed, num_frames, self.chunk_shape)

    def _score(self, chunks: Tensor, needed: Tensor) -> Tensor:
        """Return the logits (B, K, W, S) of chunks (B, K, W, D); zero where ``needed`` is false."""
        hidden, _ = self.lstm(chunks[needed])
        logits: Tensor = self.affine(hidden)
        scores = logits.new_zeros(*chunks.shape[:3], logits.shape[-1])
        scores[needed] = logits
        return scores
