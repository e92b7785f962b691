"""Replaces the names of presets by their classes, on the command line and in configs.

The parser accepts arguments of a strategy after its class, but not after a name, which it treats as
plain text.
"""

from __future__ import annotations

from lightning_hier.strategies.registry import PRESETS

# Options for the name of a strategy, and the corresponding options for its class.
_OPTIONS = {
    "--trainer.strategy": "--trainer.strategy.class_path",
    "--trainer.strategy.help": "--trainer.strategy.help",
}


def class_path_of(name: str) -> str | None:
    """Path of the class of a preset, by its name in any case. None for other names."""
    preset = PRESETS.get(name.lower())
    return None if preset is None else f"lightning_hier.{preset.__name__}"


def with_classes(args: list[str]) -> list[str]:
    """Arguments of a command, with names replaced by classes."""
    changed: list[str] = []
    for argument in args:
        # "--option value" becomes "--option=value".
        if changed and changed[-1] in _OPTIONS:
            argument = f"{changed.pop()}={argument}"
        option, _, value = argument.partition("=")
        class_path = class_path_of(value) if option in _OPTIONS else None
        changed.append(argument if class_path is None else f"{_OPTIONS[option]}={class_path}")
    return changed
