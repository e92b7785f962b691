"""Shapes of the transformer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

SizeName = Literal["tiny", "small", "gpt2", "1b"]

# The hidden width of a SwiGLU is a multiple of this number, so that matrix kernels fill their tiles
# and tensor parallelism can divide it.
_HIDDEN_MULTIPLE = 64


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
