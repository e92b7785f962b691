"""A decoder-only transformer: RMSNorm, rotary positions, causal attention, SwiGLU, no biases."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from examples.language.shapes import Shape

_INITIAL_DEVIATION = 0.02
_ROTARY_BASE = 10_000.0


class Transformer(nn.Module):
    """Decoder-only transformer that computes the logits of the next token at every position.

    The embedding and the output layer share one matrix. In a small model with a large vocabulary,
    this matrix has most of the parameters.

    Weights are initialised from a normal distribution with a standard deviation of 0.02. The
    deviation is divided by sqrt(2 L) for matrices whose output is added to the hidden state, so
    that the variance of the hidden state does not grow with L.

    Args:
        shape: number of layers and heads, and width.
        vocabulary: number of tokens.
        activation_checkpointing: whether to recompute the activations of a block in the backward
            pass instead of storing them. The computation grows by about a third, and only the
            activations of one block are in memory.

    """

    def __init__(
        self, shape: Shape, *, vocabulary: int, activation_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(vocabulary, shape.width)
        nn.init.normal_(self.embedding.weight, std=_INITIAL_DEVIATION)
        self.blocks = nn.ModuleList(
            Block(shape, activation_checkpointing=activation_checkpointing)
            for _ in range(shape.layers)
        )
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Share the weight of the embedding with the output layer."""
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, vocabulary) for tokens (B, T) int64.

        The logits at position t depend on the tokens up to and including t.
        """
        hidden = self.embedding(tokens)
        # Not stored in a buffer, because strategies synchronise buffers.
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        angles = rotary_angles(tokens.shape[1], self.shape.head_width, tokens.device, dtype)
        for block in self.blocks:
            hidden = block(hidden, *angles)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Transformer block: attention and SwiGLU, each with RMSNorm and a residual connection."""

    def __init__(self, shape: Shape, *, activation_checkpointing: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = SwiGLU(shape)
        self.activation_checkpointing = activation_checkpointing

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the hidden state (B, T, d) after this block."""
        if self.activation_checkpointing and self.training:
            # Inside the block, so that FSDP's hooks on the block run once per direction.
            result: Tensor = checkpoint(self._forward, hidden, cosines, sines, use_reentrant=False)
            return result
        return self._forward(hidden, cosines, sines)

    def _forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), cosines, sines)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Attention(nn.Module):
    """Causal multi-head attention with rotary position embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        # Rows are ordered by head, then query, key and value, because tensor parallelism divides
        # the matrix between heads.
        self.query_key_value = _matrix(shape.width, 3 * shape.width)
        self.output = _matrix(shape.width, shape.width, layers=shape.layers)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Return the output of the attention to the same and earlier positions, (B, T, d)."""
        projected = self.query_key_value(hidden)
        batch, length = projected.shape[:2]
        # -1, because a rank has only some of the heads under tensor parallelism.
        by_head = projected.view(batch, length, -1, 3, self.head_width).transpose(1, 2)
        query, key, value = by_head.unbind(3)
        attended = functional.scaled_dot_product_attention(
            rotate(query, cosines, sines), rotate(key, cosines, sines), value, is_causal=True
        )
        result: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, -1))
        return result


class SwiGLU(nn.Module):
    """Feed-forward network: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = _matrix(shape.width, shape.hidden)
        self.up = _matrix(shape.width, shape.hidden)
        self.down = _matrix(shape.hidden, shape.width, layers=shape.layers)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the network to each position."""
        result: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return result


def rotary_angles(
    length: int, head_width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (length, head_width / 2) of the rotary angles.

    An angle is position times frequency. The frequency of pair i is
    ``10000 ** (-2 i / head_width)``.
    """
    pairs = torch.arange(0, head_width, 2, device=device, dtype=dtype)
    frequencies = _ROTARY_BASE ** (-pairs / head_width)
    angles = torch.outer(torch.arange(length, device=device, dtype=dtype), frequencies)
    return angles.cos(), angles.sin()


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (i, i + D/2) of the vectors (B, H, T, D) by the angle of its position.

    The dot product of a rotated query and a rotated key depends only on the distance of their
    positions.
    """
    first, second = vectors.chunk(2, dim=-1)
    rotated = (first * cosines - second * sines, first * sines + second * cosines)
    return torch.cat(rotated, dim=-1).to(vectors.dtype)


def _matrix(inputs: int, outputs: int, *, layers: int | None = None) -> nn.Linear:
    """Return a linear layer without bias.

    ``layers`` is the number of layers of the transformer if the output is added to the hidden
    state, otherwise None.
    """
    layer = nn.Linear(inputs, outputs, bias=False)
    deviation = _INITIAL_DEVIATION / (1.0 if layers is None else math.sqrt(2 * layers))
    nn.init.normal_(layer.weight, std=deviation)
    return layer
