"""The tiny DarkNet of bmuf_adam 3.1: convolutions that turn a line image into a feature sequence.

The paper names the network (its reference [16]) and prints no table of it. The stages here are
those of Tiny DarkNet, with no more reduction of the width than characters allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Downsampling = Literal["pool", "stride"]
LEAK = 0.1
# A stage of several 3x3 convolutions has before each a 1x1 convolution this much narrower.
SQUEEZE = 8


def blank_padding(hidden: Tensor, widths: Tensor) -> Tensor:
    """Set what lies right of each line to zero.

    Args:
        hidden: (B, C, H, W).
        widths: (B,) columns of each line.
    """
    column = torch.arange(hidden.shape[-1], device=hidden.device)
    inside = column < widths.to(hidden.device).unsqueeze(1)
    return hidden * inside[:, None, None, :].to(hidden.dtype)


class ConvolutionBlock(nn.Sequential):
    """Convolution without bias, BatchNorm, leaky ReLU of slope 0.1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(LEAK, inplace=True),
        )


class Stage(nn.Module):
    """3x3 convolutions of one width, then a reduction of height and width.

    Args:
        inputs: channels that come in.
        outputs: channels of the 3x3 convolutions.
        convolutions: how many 3x3 convolutions.
        reduction: by what (height, width) are divided.
        downsampling: see :class:`DarkNet`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        convolutions: int,
        reduction: tuple[int, int],
        downsampling: Downsampling,
    ) -> None:
        super().__init__()
        self.squeezes = nn.ModuleList()
        self.convolutions = nn.ModuleList()
        for index in range(convolutions):
            if convolutions > 1:
                narrow = max(1, outputs // SQUEEZE)
                self.squeezes.append(ConvolutionBlock(inputs, narrow, 1))
                inputs = narrow
            else:
                self.squeezes.append(nn.Identity())
            strided = downsampling == "stride" and index == convolutions - 1
            stride = reduction if strided else (1, 1)
            self.convolutions.append(ConvolutionBlock(inputs, outputs, 3, stride))
            inputs = outputs
        self.pool = nn.MaxPool2d(reduction) if downsampling == "pool" else nn.Identity()

    def forward(self, hidden: Tensor, widths: Tensor) -> Tensor:
        """Apply the stage; ``widths`` (B,) are the columns of each line that come in."""
        for squeeze, convolution in zip(self.squeezes, self.convolutions, strict=True):
            hidden = convolution(blank_padding(squeeze(hidden), widths))
        pooled: Tensor = self.pool(hidden)
        return pooled


class DarkNet(nn.Module):
    """Convolution stages, each ending in a reduction of height and width.

    Padding never reaches a line: what lies right of it is set to zero before every 3x3 convolution,
    as if the image ended there. (In training mode BatchNorm takes its statistics over the padding
    too; batches of lines of similar width keep that small.)

    Args:
        height: H, pixels, of the images.
        channels: width of each stage's 3x3 convolutions.
        convolutions: 3x3 convolutions of each stage.
        reductions: by what each stage divides (height, width); (1, 1) for not at all.
        downsampling: ``"pool"`` reduces by max pooling, as DarkNet does; ``"stride"`` by the stride
            of the stage's last convolution, which then has fewer positions to compute.
        feature_channels: width of a last 1x1 convolution; 0 for none.

    Raises:
        ValueError: lists of different lengths, values out of range, or images too low for the
            reductions.
    """

    def __init__(
        self,
        *,
        height: int,
        channels: Sequence[int],
        convolutions: Sequence[int],
        reductions: Sequence[Sequence[int]],
        downsampling: Downsampling = "pool",
        feature_channels: int = 0,
    ) -> None:
        super().__init__()
        check_stages(channels, convolutions, reductions, downsampling)
        self.width_reductions = tuple(each[1] for each in reductions)
        self.subsample = math.prod(self.width_reductions)
        self.stages = nn.ModuleList()
        inputs, rows = 1, height
        for width, number, (down, across) in zip(channels, convolutions, reductions, strict=True):
            self.stages.append(Stage(inputs, width, number, (down, across), downsampling))
            # A pool leaves an incomplete last window out, a stride takes it.
            rows = rows // down if downsampling == "pool" else -(-rows // down)
            inputs = width
        if rows < 1:
            raise ValueError(
                f"reductions {reductions} leave no row of images {height} pixels high; "
                "reduce the height less or take higher images"
            )
        self.last = (
            ConvolutionBlock(inputs, feature_channels, 1) if feature_channels else nn.Identity()
        )
        self.feature_dim = (feature_channels or inputs) * rows

    def forward(self, images: Tensor, widths: Tensor) -> Tensor:
        """Turn images into feature sequences.

        Args:
            images: (B, 1, H, W); W a multiple of ``subsample``.
            widths: (B,) int64 pixels of each line, multiples of ``subsample``.

        Returns:
            (T, B, D) with T = W / subsample and D = ``feature_dim``; line b is in its first
            ``widths[b] / subsample`` vectors.
        """
        hidden = images
        for stage, across in zip(self.stages, self.width_reductions, strict=True):
            hidden = stage(hidden, widths)
            widths = widths // across
        return self.last(hidden).permute(3, 0, 1, 2).flatten(2)


def check_stages(
    channels: Sequence[int],
    convolutions: Sequence[int],
    reductions: Sequence[Sequence[int]],
    downsampling: str,
) -> None:
    """Check that the lists describe stages.

    Raises:
        ValueError: they do not.
    """
    if not len(channels) == len(convolutions) == len(reductions) > 0:
        raise ValueError(
            "channels, convolutions and reductions need one entry per stage, "
            f"got {len(channels)}, {len(convolutions)} and {len(reductions)}"
        )
    if min(*channels, *convolutions) < 1:
        raise ValueError(
            f"channels and convolutions must be at least 1, got {channels} and {convolutions}"
        )
    if any(len(each) != 2 or min(each) < 1 for each in reductions):
        raise ValueError(
            f"reductions must be pairs (height, width) of at least 1, got {reductions}"
        )
    if downsampling not in get_args(Downsampling):
        raise ValueError(f"downsampling must be 'pool' or 'stride', got {downsampling!r}")
