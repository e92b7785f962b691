"""What the command lines of all examples share."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI

import lightning_hier  # noqa: F401  (registers the strategies' names)

CLI = TypeVar("CLI", bound=LightningCLI)


def run_command_line(
    cli: type[CLI],
    model: type[LightningModule],
    data: type[LightningDataModule],
    **options: Any,
) -> CLI:
    """Run a command line whose data module makes the batches of each rank itself.

    Args:
        cli: the LightningCLI of an example.
        model: class of the model.
        data: class of the data module.
        options: further arguments of LightningCLI.
    """
    return cli(
        model,
        data,
        auto_configure_optimizers=False,
        trainer_defaults={"use_distributed_sampler": False},
        # Ranks write one folder; a second run of the same command replaces the copy of the config.
        save_config_kwargs={"overwrite": True},
        seed_everything_default=0,
        **options,
    )
