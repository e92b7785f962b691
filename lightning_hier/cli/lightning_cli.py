"""LightningCLI, with short errors, that trains when told to and knows whether it has begun."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn, cast

import lightning
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_hier.algorithms.arguments import did_you_mean
from lightning_hier.callbacks.progress_lines import ProgressLines
from lightning_hier.cli.commands import PROGRAM
from lightning_hier.cli.mistakes import end_with
from lightning_hier.cli.strategy_names import class_path_of


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

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Lightning's own, but that progress is lines where there is no terminal."""
        named = config.get("callbacks") or []
        given = named if isinstance(named, list) else [named]
        bars = [each for each in [*callbacks, *given] if isinstance(each, ProgressBar)]
        wanted = config.get("enable_progress_bar") is not False and not config.get("barebones")
        if wanted and not bars and not sys.stdout.isatty():
            callbacks = [*callbacks, ProgressLines()]
        return super()._instantiate_trainer(config, callbacks)

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Lightning's own, but for what reads a config."""
        kwargs.setdefault("dump_header", [f"lightning.pytorch=={lightning.__version__}"])
        parser: LightningArgumentParser = self.parser_class(**kwargs)
        parser.add_argument("-c", "--config", action=ConfigFile, help="a file of YAML or JSON")
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse; LightningCLI would warn that the process has the same arguments."""
        self.config = parser.parse_args(cast("list[str]", args))


class ShortErrorParser(LightningArgumentParser):
    """Says what is wrong without listing hundreds of options first."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with status 2, or raise where a parser has called this one."""
        if not self.exit_on_error:
            super().error(message, ex)
        end_with(_UNKNOWN.sub(_with_suggestion, message))


# The end of the parser's error about an argument that a class does not have.
_UNKNOWN = re.compile(r"class_path '([\w.]+)\.(\w+)':\s+Option '(\w+)[\w.]*' is not accepted")


def _with_suggestion(error: re.Match[str]) -> str:
    module, kind, name = error.groups()
    known = signature(getattr(import_module(module), kind)).parameters
    return f"{error[0]}{did_you_mean(name, list(known))}"


class ConfigFile(ActionConfigFile):
    """Has the class of a preset for its name, so that what comes next may set its arguments."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Take a config into what has been read before."""
        super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
        named = cfg.get("trainer.strategy")
        found = class_path_of(named) if isinstance(named, str) else None
        if found is not None:
            cfg["trainer.strategy"] = Namespace(class_path=found)


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
