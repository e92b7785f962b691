"""Tiny DarkNet of bmuf_adam 3.1: convolutions from a line image to a sequence of features.

The paper cites the network (its reference [16]) without a table of its layers. The stages here are
those of Tiny DarkNet. The width is reduced less, because CTC needs a frame for each character.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Downsampling = Literal["pool", "stride"]
LEAK = 0.1
# In stages of several 3x3 convolutions, a 1x1 convolution before each of them reduces the channels
# by this factor.
SQUEEZE = 8


def blank_padding(hidden: Tensor, widths: Tensor) -> Tensor:
    """Return ``hidden`` with zeros in the padding on the right of each line.

    Args:
        hidden: (B, C, H, W).
        widths: (B,) number of columns of each line.
    """
    column = torch.arange(hidden.shape[-1], device=hidden.device)
    inside = column < widths.to(hidden.device).unsqueeze(1)
    return hidden * inside[:, None, None, :].to(hidden.dtype)


class ConvolutionBlock(nn.Sequential):
    """Convolution without bias, BatchNorm, and leaky ReLU with slope 0.1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(LEAK, inplace=True),
        )


class Stage(nn.Module):
    """3x3 convolutions, then a reduction of height and width.

    Args:
        inputs: number of input channels.
        outputs: number of output channels of each 3x3 convolution.
        convolutions: number of 3x3 convolutions.
        reduction: factors by which (height, width) are reduced.
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
        """Apply the stage.

        Args:
            hidden: (B, ``inputs``, H, W).
            widths: (B,) number of columns of each line in ``hidden``.
        """
        for squeeze, convolution in zip(self.squeezes, self.convolutions, strict=True):
            hidden = convolution(blank_padding(squeeze(hidden), widths))
        pooled: Tensor = self.pool(hidden)
        return pooled


class DarkNet(nn.Module):
    """Stages of convolutions, each of which ends with a reduction of height and width.

    Padding does not change the features of a line, because it is set to zero before every 3x3
    convolution. In training mode, however, the statistics of BatchNorm include the padding. This
    effect is small in batches of lines of similar width.

    Args:
        height: H, height of the images in pixels.
        channels: number of output channels of each stage.
        convolutions: number of 3x3 convolutions of each stage.
        reductions: factors by which each stage reduces (height, width). (1, 1): no reduction.
        downsampling: ``"pool"`` reduces by max pooling, as DarkNet does. ``"stride"`` reduces by
            the stride of the last convolution of a stage, which needs less computation.
        feature_channels: channels of a final 1x1 convolution. 0: no such convolution.

    Attributes:
        subsample: width of an output frame in pixels.
        feature_dim: D, number of features of a frame.

    Raises:
        ValueError: if the lists have different lengths, a value is out of range, or ``height`` is
            too small for the reductions.
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
            # Pooling drops an incomplete last window, a strided convolution does not.
            rows = rows // down if downsampling == "pool" else -(-rows // down)
            inputs = width
        if rows < 1:
            raise ValueError(
                f"reductions {reductions} leave no row of images {height} pixels high; "
                "reduce the height less or use higher images"
            )
        self.last = (
            ConvolutionBlock(inputs, feature_channels, 1) if feature_channels else nn.Identity()
        )
        self.feature_dim = (feature_channels or inputs) * rows

    def forward(self, images: Tensor, widths: Tensor) -> Tensor:
        """Compute sequences of features.

        Args:
            images: (B, 1, H, W). W must be a multiple of ``subsample``.
            widths: (B,) int64, width of each line in pixels, a multiple of ``subsample``.

        Returns:
            Features (T, B, D) with T = W / subsample and D = ``feature_dim``. Line b has
            ``widths[b] / subsample`` frames. The others are padding.
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
    """Check the arguments that describe the stages.

    Raises:
        ValueError: if the lists have different lengths, or a value is out of range.
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
