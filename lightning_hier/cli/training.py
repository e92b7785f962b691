"""`fit`, `validate`, `test` and `predict`: LightningCLI for any model, data and strategy."""

from __future__ import annotations

import os
from importlib.util import find_spec

from lightning_hier.cli.commands import INSTALL
from lightning_hier.cli.mistakes import end_with, mistakes_in_one_screen
from lightning_hier.cli.quiet import silence_libraries
from lightning_hier.cli.strategy_help import preset_asked_for, strategy_help
from lightning_hier.cli.strategy_names import with_classes
from lightning_hier.cli.training_help import short_help

NEEDED = ("jsonargparse", "docstring_parser", "typeshed_client")


def run(args: list[str]) -> None:
    """Run a command, given as its name and its arguments.

    Errors of the kinds that tell the user what to change come without a traceback until the first
    batch: those of the config, of the constructors, and of all that is checked before training.
    From then on an error is a crash and keeps its traceback.

    Raises:
        SystemExit: with status 2 for what the user got wrong, 0 after a help.
    """
    name, *rest = args
    if {"-h", "--help"} & set(rest):
        print(short_help(name), end="")
        return
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        end_with(f"{name} needs {', '.join(missing)}: {INSTALL}")
    # The parser is Lightning's own, and what it does with it is none of the user's affair.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    given = with_classes(rest)
    preset = preset_asked_for(given)
    if preset is not None:
        print(strategy_help(name, preset), end="")
        return
    from lightning_hier.cli.lightning_cli import TrainingCLI
    from lightning_hier.strategies.registry import register

    silence_libraries(name)
    register()  # importing the package does not, in this process

    # Its own help is what we call --help_all.
    asked = ["--help" if each == "--help_all" else each for each in given]
    with mistakes_in_one_screen():
        cli = TrainingCLI([name, *asked])
    with mistakes_in_one_screen(lambda: not cli.has_begun):
        cli.run()
