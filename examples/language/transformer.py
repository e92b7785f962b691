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
    """Logits of the next token at every position.

    The embedding is tied: one matrix embeds the tokens and computes the logits. It is the larger
    part of a small model with a large vocabulary, and learns from both uses.

    Weights are drawn from a normal distribution with a deviation of 0.02; those of matrices that
    add to the hidden state are divided by sqrt(2 L), so that its variance does not grow with L.

    Args:
        shape: layers, heads and width.
        vocabulary: number of tokens.
        activation_checkpointing: compute the activations of a block again in the backward pass
            instead of keeping them: about a third more computation, and memory of one block.
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
        """Let the output layer use the embedding's weight."""
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) for tokens (B, T) int64; those at t depend on tokens to t."""
        hidden = self.embedding(tokens)
        # Computed here, not kept in a buffer: strategies would synchronise a buffer.
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        angles = rotary_angles(tokens.shape[1], self.shape.head_width, tokens.device, dtype)
        for block in self.blocks:
            hidden = block(hidden, *angles)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class Block(nn.Module):
    """Attention and SwiGLU, each added to the hidden state and preceded by RMSNorm."""

    def __init__(self, shape: Shape, *, activation_checkpointing: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = SwiGLU(shape)
        self.activation_checkpointing = activation_checkpointing

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Hidden state (B, T, d) after this block."""
        if self.activation_checkpointing and self.training:
            # Inside the block, so that FSDP's hooks on the block run once in each direction.
            result: Tensor = checkpoint(self._forward, hidden, cosines, sines, use_reentrant=False)
            return result
        return self._forward(hidden, cosines, sines)

    def _forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), cosines, sines)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Attention(nn.Module):
    """Causal attention of several heads with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        # Rows are ordered by head, then query, key, value: tensor parallelism cuts between heads.
        self.query_key_value = _matrix(shape.width, 3 * shape.width)
        self.output = _matrix(shape.width, shape.width, layers=shape.layers)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Attend to the same and earlier positions."""
        projected = self.query_key_value(hidden)
        batch, length = projected.shape[:2]
        # -1: under tensor parallelism a rank has a part of the heads.
        by_head = projected.view(batch, length, -1, 3, self.head_width).transpose(1, 2)
        query, key, value = by_head.unbind(3)
        mixed = functional.scaled_dot_product_attention(
            rotate(query, cosines, sines), rotate(key, cosines, sines), value, is_causal=True
        )
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = _matrix(shape.width, shape.hidden)
        self.up = _matrix(shape.width, shape.hidden)
        self.down = _matrix(shape.hidden, shape.width, layers=shape.layers)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply it to each position by itself."""
        result: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return result


def rotary_angles(
    length: int, head_width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, head_width / 2) of position times frequency.

    The frequency of pair i is ``10000 ** (-2 i / head_width)``.
    """
    pairs = torch.arange(0, head_width, 2, device=device, dtype=dtype)
    frequencies = _ROTARY_BASE ** (-pairs / head_width)
    angles = torch.outer(torch.arange(length, device=device, dtype=dtype), frequencies)
    return angles.cos(), angles.sin()


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of vectors (B, H, T, D) by the angle of its position.

    The product of a turned query and a turned key depends on the distance of their positions
    alone.
    """
    first, second = vectors.chunk(2, dim=-1)
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    return torch.cat(turned, dim=-1).to(vectors.dtype)


def _matrix(inputs: int, outputs: int, *, layers: int | None = None) -> nn.Linear:
    """A linear layer without bias; with ``layers``, one that adds to the hidden state."""
    layer = nn.Linear(inputs, outputs, bias=False)
    deviation = _INITIAL_DEVIATION / (1.0 if layers is None else math.sqrt(2 * layers))
    nn.init.normal_(layer.weight, std=deviation)
    return layer
