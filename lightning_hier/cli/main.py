"""`lightning-hier`: runs a command and reports errors of the user on one screen.

The module of a command is imported when the command is called. It has a function
``run(args: list[str]) -> None``, which receives the arguments after the name of the command.
Commands that train share one module, which also receives the name and handles errors itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from lightning_hier.cli.mistakes import PROGRAM, end_with, mistakes_in_one_screen
from lightning_hier.version import __version__


class Command(NamedTuple):
    """A command: its module, its summary, and whether it trains."""

    module: str
    summary: str
    trains: bool = False


# Not subparsers of argparse, for which every command would be imported to learn its options.
COMMANDS: dict[str, Command] = {
    "fit": Command("training", "train a model", trains=True),
    "validate": Command("training", "score a model on validation data", trains=True),
    "test": Command("training", "score a model on test data", trains=True),
    "predict": Command("training", "make predictions with a model", trains=True),
    "measure": Command("training", "find batch sizes for hosts of unequal speed", trains=True),
    "plan": Command("plan", "predict the cost of each strategy, and recommend one"),
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: arguments that replace those of the process.

    Raises:
        SystemExit: status 2 after an error of the user, 0 after ``--help``.
    """
    name, *rest = list(sys.argv[1:] if args is None else args) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
    elif name == "--version":
        print(f"{PROGRAM} {__version__}")
    elif name.startswith("--print_completion="):  # an option of jsonargparse
        _module("fit").run([name])
    elif name not in COMMANDS:
        end_with(f"no command {name!r}; there are {', '.join(COMMANDS)}")
    else:
        _run(name, rest)


def _run(name: str, args: list[str]) -> None:
    # Configs may name classes in the current directory. `python -m` finds them, a script does not.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    if COMMANDS[name].trains:  # it handles errors itself, because those in training have tracebacks
        _module(name).run([name, *args])
    else:
        with mistakes_in_one_screen():
            _module(name).run(args)


def _module(name: str) -> Any:
    return import_module(f"lightning_hier.cli.{COMMANDS[name].module}")


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [ARGUMENTS]",
            "",
            "Data-parallel training over slow networks with PyTorch Lightning.",
            "",
            *(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()),
            "",
            f"'{PROGRAM} COMMAND --help' describes a command, '{PROGRAM} --version' the version.",
        ]
    )
