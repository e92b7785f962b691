"""Help of a strategy: its own arguments, and those of DDP in one line."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from textwrap import fill
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lightning_hier.cli.commands import PROGRAM
from lightning_hier.comm.blocks.block_sync import ModelAveraging
from lightning_hier.comm.blocks.bmuf import BMUF
from lightning_hier.comm.blocks.bmuf_adam import BMUFAdam
from lightning_hier.comm.blocks.diloco import DiLoCo
from lightning_hier.comm.gradients.gradient_sync import GTC
from lightning_hier.strategies.registry import PRESETS, Preset, summary

OPTION = "--trainer.strategy.help="
_MORE = "[--trainer.strategy.ARGUMENT=VALUE ...]"
# Classes besides the bases whose docstrings describe arguments of presets.
_COMPONENTS = (GTC, ModelAveraging, BMUF, BMUFAdam, DiLoCo)
_OF_DDP = """\
  and the arguments of Lightning's DDPStrategy and torch's DistributedDataParallel, such as
  find_unused_parameters, gradient_as_bucket_view, bucket_cap_mb and process_group_backend"""


def preset_asked_for(args: list[str]) -> str | None:
    """Name of the preset whose help is requested, or None."""
    asked = [each.removeprefix(OPTION) for each in args if each.startswith(OPTION)]
    classes = {f"lightning_hier.{preset.__name__}": name for name, preset in PRESETS.items()}
    return classes.get(asked[-1]) if asked else None


def strategy_help(command: str, name: str) -> str:
    """Help of the strategy with this name."""
    preset = PRESETS[name]
    hints = get_type_hints(preset.__init__)
    parameters = inspect.signature(preset).parameters.values()
    arguments = [
        f"  --trainer.strategy.{own.name}={own.default}   ({_type(hints[own.name])})\n"
        + fill(_explained(preset, own.name), 88, initial_indent=" " * 8, subsequent_indent=" " * 8)
        for own in parameters
        if own.kind != own.VAR_KEYWORD
    ]
    usage = (
        f"usage: {PROGRAM} {command} --trainer.strategy={name} [--trainer.strategy.ARGUMENT=VALUE"
    )
    return "\n".join([f"{usage} ...]", "", summary(preset), "", *arguments, "", _OF_DDP, ""])


def _explained(preset: Preset, name: str) -> str:
    """First sentence of the description of an argument."""
    parameters = inspect.signature(preset).parameters.keys()
    # The component that the preset creates has most arguments in common with it.
    own = max(_COMPONENTS, key=lambda kind: len(parameters & _names(kind)))
    for kind in (*preset.__mro__, *own.__mro__, *_COMPONENTS):
        text = _arguments(inspect.getdoc(kind) or "").get(name, "as in")
        if not text.startswith("as in"):
            return re.split(r"\. (?=[A-Z])", text)[0].rstrip(".")
    return ""


def _names(component: type) -> set[str]:
    return {field.name for field in fields(component)}


def _arguments(doc: str) -> dict[str, str]:
    """Descriptions of arguments and attributes in a docstring."""
    from docstring_parser import parse

    found = {own.arg_name: own.description or "" for own in parse(doc).params}
    return {name: re.sub(r"\s+", " ", _plain(text)) for name, text in found.items()}


def _plain(text: str) -> str:
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("`", "")


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(map(_type, get_args(hint)))
    return "null" if hint is type(None) else str(hint.__name__)
