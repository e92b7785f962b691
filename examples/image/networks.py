"""Residual networks: torchvision's ResNet-50 and a small one for small images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation beside a shortcut.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        stride: by which height and width are divided; the shortcut is a 1x1 convolution where the
            shape changes.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_normalised(inputs, outputs, stride=stride),
            nn.ReLU(),
            *_normalised(outputs, outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(*_normalised(inputs, outputs, kernel=1, stride=stride))
        )

    def forward(self, images: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, ceil(H / stride), ceil(W / stride))."""
        return nn.functional.relu(self.convolutions(images) + self.shortcut(images))


def small_resnet(
    *, image_channels: int, num_classes: int, channels: Sequence[int], blocks: int
) -> nn.Sequential:
    """A residual network for images of 8 x 8 pixels and more.

    Args:
        image_channels: 1 for grey images, 3 for coloured ones.
        num_classes: outputs.
        channels: of each stage; each but the first halves height and width.
        blocks: residual blocks of a stage.

    Raises:
        ValueError: no stage, no block or no channel.
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
    """torchvision's ResNet-50 as it is, with its initial weights drawn.

    Raises:
        ValueError: for grey images.
    """
    from torchvision.models import resnet50 as build  # a heavy import, for this network alone

    if image_channels != 3:
        raise ValueError(f"resnet50 takes coloured images, got {image_channels} channel(s)")
    network: nn.Module = build(weights=None, num_classes=num_classes)
    return network


def _normalised(
    inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1
) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outputs)
