"""The commands of `lightning-hier`: name, summary and module of each.

The module of a command is imported when the command is called. It has a function
``run(args: list[str]) -> None``, which receives the arguments after the name of the command.
Commands that train share one module, which also receives the name and handles errors itself.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAM = "lightning-hier"
# How to install the packages that only some commands need.
INSTALL = "pip install '.[cli]' in the folder of lightning_hier"


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
    "measure": Command("measure", "measure links and a step of a module, for plan"),
    "plan": Command("plan", "predict the cost of each strategy, and recommend one"),
    "report": Command("report", "create a page that compares runs"),
    "lighthouse": Command("lighthouse", "serve quorums for groups that come and go"),
    "completion": Command("completion", "print a completion script for bash or zsh"),
}
