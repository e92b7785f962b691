"""Residual networks: the ResNet-50 of torchvision, and a small network for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, and a shortcut.

    The shortcut is a 1x1 convolution if the shape changes, and the identity otherwise.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        stride: factor by which height and width are reduced.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_normalised(inputs, outputs, stride=stride),
            nn.ReLU(),
            *_normalised(outputs, outputs),
        )
        same_shape = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same_shape
            else nn.Sequential(*_normalised(inputs, outputs, kernel=1, stride=stride))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Apply the block. The output is (N, outputs, ceil(H / stride), ceil(W / stride))."""
        return nn.functional.relu(self.convolutions(images) + self.shortcut(images))


def small_resnet(
    *, image_channels: int, num_classes: int, channels: Sequence[int], blocks: int
) -> nn.Sequential:
    """Return a residual network for images of at least 8 x 8 pixels.

    Args:
        image_channels: 1 for grey images, 3 for colour images.
        num_classes: number of outputs.
        channels: channels of each stage. All stages except the first halve height and width.
        blocks: number of residual blocks in each stage.

    Raises:
        ValueError: if there is no stage, or a stage has no block or no channel.
    """
    if blocks < 1 or not channels or min(channels) < 1:
        raise ValueError(
            "a network needs a stage, and each stage a block and a channel, got channels "
            f"{list(channels)} and {blocks} blocks"
        )
    layers: list[nn.Module] = [*_normalised(image_channels, channels[0]), nn.ReLU()]
    inputs = channels[0]
    for stage, outputs in enumerate(channels):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(inputs, outputs, stride=stride))
            inputs = outputs
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))
    return nn.Sequential(*layers, *head)


def resnet50(*, image_channels: int, num_classes: int) -> nn.Module:
    """Return the ResNet-50 of torchvision with random weights.

    Raises:
        ValueError: if ``image_channels`` is not 3.
    """
    from torchvision.models import resnet50 as build  # slow import that only this network needs

    if image_channels != 3:
        raise ValueError(f"resnet50 requires coloured images, got {image_channels} channel(s)")
    network: nn.Module = build(weights=None, num_classes=num_classes)
    return network


def _normalised(
    inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    """Return a convolution and its batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outputs)
