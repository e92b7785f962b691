"""Command line of the speech example: fit, validate and test acoustic models.

    python -m examples.acoustic.train fit --config examples/acoustic/configs/synthetic_lstm.yaml \
        --trainer.strategy=bmuf_gtc --trainer.devices=4
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.models import FrameClassifier
from examples.command_line import run_command_line


def feature_dim_of(data: AcousticDataModule) -> int:
    """Inputs per frame of the data module's corpus, which is built for it."""
    return data.corpus.feature_dim


def num_senones_of(data: AcousticDataModule) -> int:
    """Senones of the data module's corpus, which is built for it."""
    return len(data.corpus.senones)


class AcousticCLI(LightningCLI):
    """LightningCLI whose model gets its input and output sizes from the data."""

    datamodule: AcousticDataModule

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link the sizes; both are known once the data module stands."""
        for target, size_of in (("feature_dim", feature_dim_of), ("num_senones", num_senones_of)):
            parser.link_arguments(
                "data", f"model.init_args.{target}", compute_fn=size_of, apply_on="instantiate"
            )


def main(args: ArgsType = None, **options: Any) -> AcousticCLI:
    """Run the command line.

    Args:
        args: arguments instead of those of the process, for tests.
        options: further arguments of LightningCLI, such as ``run=False``.
    """
    return run_command_line(
        AcousticCLI,
        FrameClassifier,
        AcousticDataModule,
        subclass_mode_model=True,
        args=args,
        **options,
    )


if __name__ == "__main__":
    main()
