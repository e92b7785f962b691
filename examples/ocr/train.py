"""Command line of the text line example: fit, validate, test and predict.

    python -m examples.ocr.train fit --config examples/ocr/configs/synthetic_small.yaml \
        --trainer.strategy=bmuf_adam --trainer.devices=4
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from examples.command_line import run_command_line
from examples.ocr.data_module import TextLines
from examples.ocr.model import DarkNetDBLSTM


def num_classes_of(data: TextLines) -> int:
    """Characters of the data module's alphabet and the blank."""
    return len(data.alphabet)


class LineCLI(LightningCLI):
    """LightningCLI whose model gets its number of classes from the data, and both one height."""

    datamodule: TextLines

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the sizes; the alphabet is known once the data module stands."""
        parser.link_arguments("data.height", "model.height")
        parser.link_arguments(
            "data", "model.num_classes", compute_fn=num_classes_of, apply_on="instantiate"
        )


def main(args: ArgsType = None, **options: Any) -> LineCLI:
    """Run the command line.

    Args:
        args: arguments instead of those of the process, for tests.
        options: further arguments of LightningCLI, such as ``run=False``.
    """
    return run_command_line(LineCLI, DarkNetDBLSTM, TextLines, args=args, **options)


if __name__ == "__main__":
    main()
