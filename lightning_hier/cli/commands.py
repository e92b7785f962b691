"""The commands of `lightning-hier`: their names, a line about each, and the module that runs it.

A module is imported when its command is asked for, and offers ``run(args: list[str]) -> None``,
which gets the arguments behind the command's name. That of a command that trains gets the name too,
since one module runs four of them, and decides by itself which errors are the user's.
"""

from __future__ import annotations

from typing import NamedTuple

PROGRAM = "lightning-hier"
# What brings the packages that some commands need besides.
INSTALL = "pip install '.[cli]' in the folder of lightning_hier"


class Command(NamedTuple):
    """What is known of a command before it runs."""

    module: str
    summary: str
    trains: bool = False


COMMANDS: dict[str, Command] = {
    "fit": Command("training", "train a model", trains=True),
    "validate": Command("training", "score a model on validation data", trains=True),
    "test": Command("training", "score a model on test data", trains=True),
    "predict": Command("training", "make predictions with a model", trains=True),
    "measure": Command("measure", "time links and a module's step, for plan"),
    "plan": Command("plan", "predict the cost of each strategy, and recommend one"),
    "report": Command("report", "make a page that sets runs side by side"),
    "completion": Command("completion", "print a script that completes in bash or zsh"),
}
