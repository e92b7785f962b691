"""LightningCLI with short errors, which separates construction from training."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn, cast

import lightning
from jsonargparse import ActionConfigFile, Namespace  # type: ignore[attr-defined]
from lightning.pytorch import Callback
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_hier.algorithms.arguments import did_you_mean
from lightning_hier.cli.mistakes import PROGRAM, end_with
from lightning_hier.strategies.registry import class_path_of


class TrainingCLI(LightningCLI):
    """LightningCLI for any model, data and strategy, given in YAML or by options.

    The constructor creates all objects, and :meth:`run` trains.

    Args:
        args: command and its arguments.

    Attributes:
        first_batch: knows whether the first batch has begun.

    """

    def __init__(self, args: list[str]) -> None:
        self.first_batch = FirstBatch()
        super().__init__(
            parser_class=ShortErrorParser,
            parser_kwargs={"prog": PROGRAM},
            # All ranks use one directory. A second run of the command replaces the config there.
            save_config_kwargs={"overwrite": True},
            # A fixed default, because ranks that draw a seed would draw different ones.
            seed_everything_default=0,
            trainer_defaults={"callbacks": [self.first_batch]},
            args=args,
        )

    def run(self) -> None:
        """Train, validate, test or predict, depending on the command."""
        assert self.subcommand is not None
        super()._run_subcommand(self.subcommand)

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing: :meth:`run` runs it, so that errors before training can be distinguished."""

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Create the parser, with :class:`ConfigFile` for configs."""
        # The method of LightningCLI with another action, which cannot be replaced otherwise.
        kwargs.setdefault("dump_header", [f"lightning.pytorch=={lightning.__version__}"])
        parser: LightningArgumentParser = self.parser_class(**kwargs)
        parser.add_argument("-c", "--config", action=ConfigFile, help="a file of YAML or JSON")
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse without LightningCLI's warning about arguments of the process."""
        self.config = parser.parse_args(cast("list[str]", args))


class ShortErrorParser(LightningArgumentParser):
    """Reports an error without listing hundreds of options first."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End with status 2, or raise if another parser has called this one."""
        if not self.exit_on_error:
            super().error(message, ex)
        end_with(_UNKNOWN.sub(_with_known, message))


# End of the parser's error about an unknown argument of a class. If a release of jsonargparse words
# it otherwise, the error does not list the arguments, and nothing else changes.
_UNKNOWN = re.compile(r"class_path '([\w.]+)\.(\w+)':\s+Option '(\w+)[\w.]*' is not accepted")


def _with_known(error: re.Match[str]) -> str:
    module, kind, name = error.groups()
    known = [*signature(getattr(import_module(module), kind)).parameters]
    return f"{error[0]}{did_you_mean(name, known)} It takes {', '.join(known)}"


class ConfigFile(ActionConfigFile):
    """Replaces the name of a preset by its class, so that later options may set its arguments."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Merge a config into the previous values."""
        super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]
        named = cfg.get("trainer.strategy")
        class_path = class_path_of(named) if isinstance(named, str) else None
        if class_path is not None:
            cfg["trainer.strategy"] = Namespace(class_path=class_path)


class FirstBatch(Callback):
    """Records the first batch. Errors before it are about settings."""

    # Not a LambdaCallback: its function would be local, which strategies that spawn cannot pickle.
    def __init__(self) -> None:
        self.has_begun = False

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        """Record that a batch has started."""
        self.has_begun = True

    on_validation_batch_start = on_test_batch_start = on_train_batch_start
    on_predict_batch_start = on_train_batch_start
