"""A decoder-only transformer: RMSNorm, rotary positions, causal attention, SwiGLU, no biases."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SizeName = Literal["tiny", "small", "gpt2", "1b"]

# The hidden width of a SwiGLU is a multiple of this number, so that matrix kernels fill their tiles
# and tensor parallelism can divide it.
_HIDDEN_MULTIPLE = 64
_INITIAL_DEVIATION = 0.02
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape of a transformer. The vocabulary is not part of it.

    Attributes:
        layers: L, number of transformer blocks.
        heads: H, number of attention heads of a block.
        width: d, number of elements of the hidden state of a token.

    Raises:
        ValueError: a number is below 1, or the width of a head is not an even number, which rotary
            position embeddings require.

    """

    layers: int
    heads: int
    width: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("layers", "heads", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}"
            )

    @property
    def head_width(self) -> int:
        """Number of elements of a query, key or value of one head."""
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Hidden width of the SwiGLU: 8/3 d, rounded up to a multiple of 64.

        Its three matrices then have about as many elements as the two matrices of a feed-forward
        network with a hidden width of 4 d.
        """
        return -(-8 * self.width // (3 * _HIDDEN_MULTIPLE)) * _HIDDEN_MULTIPLE


SHAPES: dict[str, Shape] = {
    "tiny": Shape(layers=4, heads=4, width=64),
    "small": Shape(layers=4, heads=4, width=256),
    "gpt2": Shape(layers=12, heads=12, width=768),
    "1b": Shape(layers=18, heads=16, width=2048),
}


def shape_of(
    size: str,
    *,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
) -> Shape:
    """Return the shape with this name, with some of its numbers replaced.

    Args:
        size: a key of ``SHAPES``.
        layers, heads, width: values that replace those of the shape. None: no replacement.

    Raises:
        ValueError: the name is unknown, or the numbers do not fit together.

    """
    if size not in SHAPES:
        raise ValueError(f"size must be one of {', '.join(SHAPES)}, got {size!r}")
    values = {"layers": layers, "heads": heads, "width": width}
    return replace(
        SHAPES[size], **{name: value for name, value in values.items() if value is not None}
    )


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
