"""Command line of the image example: fit, validate, test and predict.

    python -m examples.image.train fit --config examples/image/configs/digits.yaml \
        --trainer.strategy=psp --trainer.devices=4
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from examples.command_line import run_command_line
from examples.image.data_module import Images
from examples.image.model import ResNetClassifier


def num_classes_of(data: Images) -> int:
    """Classes of the data module's corpus, which is read for it."""
    return data.corpus.num_classes


def image_channels_of(data: Images) -> int:
    """Channels of the images of the data module's corpus, which is read for it."""
    return data.corpus.channels


class ImageCLI(LightningCLI):
    """LightningCLI whose model gets its input and output sizes from the data."""

    datamodule: Images

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the sizes; both are known once the data module stands."""
        for target, size_of in (
            ("num_classes", num_classes_of),
            ("image_channels", image_channels_of),
        ):
            parser.link_arguments(
                "data", f"model.{target}", compute_fn=size_of, apply_on="instantiate"
            )


def main(args: ArgsType = None, **options: Any) -> ImageCLI:
    """Run the command line.

    Args:
        args: arguments instead of those of the process, for tests.
        options: further arguments of LightningCLI, such as ``run=False``.
    """
    return run_command_line(ImageCLI, ResNetClassifier, Images, args=args, **options)


if __name__ == "__main__":
    main()
