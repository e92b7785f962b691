"""Help of the commands that train: one screen, and one for each strategy."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from textwrap import fill
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightning_hier.cli.main import COMMANDS
from lightning_hier.cli.mistakes import PROGRAM
from lightning_hier.comm.blocks.bmuf import BMUF
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.blocks.model_averaging import ModelAveraging
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.strategies.registry import PRESETS, Preset, class_path_of, summary

_OPTION = "--trainer.strategy.help="
_MORE = "[--trainer.strategy.ARGUMENT=VALUE ...]"
# Classes besides the bases whose docstrings describe arguments of presets.
_COMPONENTS = (GTC, ModelAveraging, BMUF, BMUFAdam, DiLoCo)
_OF_DDP = """\
  and the arguments of Lightning's DDPStrategy and torch's DistributedDataParallel, such as
  find_unused_parameters, gradient_as_bucket_view, bucket_cap_mb and process_group_backend"""
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


def short_help(name: str) -> str:
    """Help of ``fit``, ``validate``, ``test`` or ``predict``."""
    width = max(map(len, PRESETS))
    strategies = "\n".join(
        f"  {key:<{width}}  {summary(preset)}" for key, preset in PRESETS.items()
    )
    does = COMMANDS[name].summary.capitalize()
    return _TEXT.format(program=PROGRAM, name=name, summary=does, strategies=strategies)


def preset_asked_for(args: list[str]) -> str | None:
    """Name of the preset whose help is requested, or None."""
    asked = [argument.removeprefix(_OPTION) for argument in args if argument.startswith(_OPTION)]
    return next((name for name in PRESETS if asked and class_path_of(name) == asked[-1]), None)


def strategy_help(command: str, name: str) -> str:
    """Help of the strategy with this name."""
    preset = PRESETS[name]
    hints, parameters = get_type_hints(preset.__init__), inspect.signature(preset).parameters
    arguments = [
        f"  --trainer.strategy.{key}={parameter.default}   ({_type(hints[key])})\n"
        + fill(_explained(preset, key), 88, initial_indent=" " * 8, subsequent_indent=" " * 8)
        for key, parameter in parameters.items()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    # Strategies for divided modules have no arguments of DDP.
    more = ["", _OF_DDP] if "ddp_kwargs" in parameters else []
    usage = f"usage: {PROGRAM} {command} --trainer.strategy={name} {_MORE}"
    return "\n".join([usage, "", summary(preset), "", *arguments, *more, ""])


def _explained(preset: Preset, name: str) -> str:
    """First sentence of the description of an argument."""
    parameters = inspect.signature(preset).parameters.keys()
    # The component that the preset creates has most arguments in common with it.
    component = max(_COMPONENTS, key=lambda kind: len(parameters & _names(kind)))
    for kind in (*preset.__mro__, *component.__mro__, *_COMPONENTS):
        # A description "as in ..." refers to another class, which is searched later.
        text = _arguments(inspect.getdoc(kind) or "").get(name, "as in")
        if not text.startswith("as in"):
            return re.split(r"\. (?=[A-Z])", text)[0].rstrip(".")
    return ""


def _names(component: type) -> set[str]:
    return {field.name for field in fields(component)}


def _arguments(doc: str) -> dict[str, str]:
    """Descriptions of arguments and attributes in a docstring."""
    from docstring_parser import parse

    texts = {parameter.arg_name: parameter.description or "" for parameter in parse(doc).params}
    return {name: re.sub(r"\s+", " ", _plain(text)) for name, text in texts.items()}


def _plain(text: str) -> str:
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("`", "")


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_type, get_args(hint)))
    return "null" if hint is type(None) else str(hint.__name__)
