"""LightningCLI, with short errors, that trains when told to and knows whether it has begun."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_hier.cli.commands import PROGRAM
from lightning_hier.cli.mistakes import end_with


class TrainingCLI(LightningCLI):
    """Any model, any data, any strategy, named in YAML or by options.

    Everything is made in the constructor; :meth:`run` trains.

    Args:
        args: the command and its arguments.

    Attributes:
        has_begun: whether a batch has been taken.
    """

    def __init__(self, args: list[str]) -> None:
        self._first_batch = FirstBatch()
        super().__init__(
            parser_class=ShortErrorParser,
            parser_kwargs={"prog": PROGRAM},
            # Ranks write one folder; a second run of the same command replaces the copy there.
            save_config_kwargs={"overwrite": True},
            # The same on all ranks: a seed that each draws by itself would not be.
            seed_everything_default=0,
            trainer_defaults={"callbacks": [self._first_batch]},
            args=args,
        )

    @property
    def has_begun(self) -> bool:
        """Whether a batch has been taken."""
        return self._first_batch.has_begun

    def run(self) -> None:
        """Train, validate, test or predict, as the arguments say."""
        assert self.subcommand is not None
        super()._run_subcommand(self.subcommand)

    def _run_subcommand(self, subcommand: str) -> None:
        """Leave it to :meth:`run`, so that mistakes before and crashes after can be told apart."""

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse; LightningCLI would warn that the process has the same arguments."""
        self.config = parser.parse_args(cast("list[str]", args))


class ShortErrorParser(LightningArgumentParser):
    """Says what is wrong without listing hundreds of options first."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with status 2, or raise where a parser has called this one."""
        if not self.exit_on_error:
            super().error(message, ex)
        end_with(message)


class FirstBatch(Callback):
    """Notes that a batch has been taken: until then errors are about settings."""

    def __init__(self) -> None:
        self.has_begun = False

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Note it."""
        self.has_begun = True

    def on_validation_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Note it."""
        self.has_begun = True

    def on_test_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Note it."""
        self.has_begun = True

    def on_predict_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Note it."""
        self.has_begun = True
