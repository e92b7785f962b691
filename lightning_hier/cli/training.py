"""Commands that run a Trainer, such as `fit`: LightningCLI for any model, data and strategy."""

from __future__ import annotations

import logging
import os
import warnings
from importlib.util import find_spec

from lightning_hier.cli.main import COMMANDS
from lightning_hier.cli.mistakes import INSTALL, PROGRAM, end_with, mistakes_in_one_screen
from lightning_hier.strategies.registry import PRESETS, class_path_of, register, summary

NEEDED = ("jsonargparse", "docstring_parser", "typeshed_client")
# Prefixes of module names. They match the module that the warning points to (stacklevel).
_LIBRARIES = r"(lightning|lightning_utilities|lightning_fabric|torch|torchmetrics|jsonargparse)\."

# Options for the name of a strategy, and the corresponding options for its class.
_OPTIONS = {
    "--trainer.strategy": "--trainer.strategy.class_path",
    "--trainer.strategy.help": "--trainer.strategy.help",
}

_TEXT = """\
usage: {program} {name} --config FILE [--config FILE ...] [--OPTION=VALUE ...]

{summary}: LightningCLI with the strategies of this package. A config:

  model:
    class_path: my_models.Net        # any LightningModule, also in the current directory
    init_args: {{width: 64}}
  data:
    class_path: my_data.Images       # any LightningDataModule; optional
  trainer:                           # arguments of Trainer
    devices: 8
    num_nodes: 4
    strategy: bmuf_gtc

Options set or override any line: --model.width=32 --trainer.devices=2

strategies:
{strategies}

  --trainer.strategy=bmuf --trainer.strategy.block_size=20    a name and its arguments
  --trainer.strategy=my_bmuf.yaml                             a file, as in examples/strategies

more:
  --print_config           the whole config with all defaults
  --trainer.strategy.help=bmuf, --model.help=my_models.Net, --data.help=my_data.Images
                           arguments of a strategy, a model, a data module
  --ckpt_path=FILE         resume from a checkpoint, or evaluate it
  --help_all               every option
"""


_MEASURED = """
It takes the config of fit, and is started on all hosts as fit is. It sets `batch_size` of the data
module or LightningModule, trains 24 steps with each of four sizes, by averages of models instead of
`strategy`, and prints the sizes with which a step takes equally long on all hosts.
"""


def run(args: list[str]) -> None:
    """Run a command.

    Before the first batch, errors of the user are reported without a traceback: errors of the
    config, of constructors, and of checks before training. Later errors keep their traceback.

    Args:
        args: name of the command and its arguments.

    Raises:
        SystemExit: status 2 after an error of the user, 0 after a help.
    """
    name, *rest = args
    if {"-h", "--help"} & set(rest):
        print(_help(name), end="")
        return
    missing = [module for module in NEEDED if find_spec(module) is None]
    if missing:
        end_with(f"{name} needs {', '.join(missing)}: {INSTALL}")
    # Lightning's use of its own parser causes warnings that a user cannot act on.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    from lightning_hier.cli.lightning_cli import TrainingCLI

    silence_libraries(name)
    # In the process of a command, the package imports its public names, which register the
    # strategies, only when they are used.
    register()

    # --help_all is the help of LightningCLI.
    asked = ["--help" if argument == "--help_all" else argument for argument in with_classes(rest)]
    with mistakes_in_one_screen():
        if name == "measure":
            from lightning_hier.cli.measure import MeasuringCLI

            cli: TrainingCLI = MeasuringCLI(["fit", *asked])
        else:
            cli = TrainingCLI([name, *asked])
    with mistakes_in_one_screen(lambda: not cli.first_batch.has_begun):
        cli.run()


def with_classes(args: list[str]) -> list[str]:
    """Arguments of a command, with the names of presets replaced by their classes.

    The parser accepts arguments of a strategy after its class, but not after a name, which it
    treats as plain text.
    """
    changed: list[str] = []
    for argument in args:
        # "--option value" becomes "--option=value".
        if changed and changed[-1] in _OPTIONS:
            argument = f"{changed.pop()}={argument}"
        option, _, value = argument.partition("=")
        class_path = class_path_of(value) if option in _OPTIONS else None
        changed.append(argument if class_path is None else f"{_OPTIONS[option]}={class_path}")
    return changed


def silence_libraries(command: str = "fit") -> None:
    """Suppress deprecation warnings between libraries, and Lightning's tips.

    This affects only the process of a command. Warnings about the user's code are still shown.
    Commands that do not train save no checkpoints, so warnings about their directory are omitted.
    """
    if command != "fit":
        warnings.filterwarnings("ignore", message="The dirpath has changed")
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category, module=_LIBRARIES)
    for package in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{package}.utilities.rank_zero").addFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "Tip:" not in record.getMessage()[:10]


def _help(name: str) -> str:
    """Help of a command that trains or evaluates."""
    width = max(map(len, PRESETS))
    strategies = "\n".join(
        f"  {key:<{width}}  {summary(preset)}" for key, preset in PRESETS.items()
    )
    does = COMMANDS[name].summary.capitalize()
    text = _TEXT.format(program=PROGRAM, name=name, summary=does, strategies=strategies)
    return text + _MEASURED if name == "measure" else text
