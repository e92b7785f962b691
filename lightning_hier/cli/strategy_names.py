"""The class of a preset for its name, on the command line as in a config.

Arguments of a strategy can follow its class, wherever it was named; they can't follow a name, which
is a mere word to the parser.
"""

from __future__ import annotations

from lightning_hier.strategies.registry import PRESETS

# Options that take a strategy's name, and those that take its class.
_OPTIONS = {
    "--trainer.strategy": "--trainer.strategy.class_path",
    "--trainer.strategy.help": "--trainer.strategy.help",
}


def class_path_of(name: str) -> str | None:
    """Where the class of a preset is, by the preset's name in any case; None: not one of ours."""
    preset = PRESETS.get(name.lower())
    return None if preset is None else f"lightning_hier.{preset.__name__}"


def with_classes(args: list[str]) -> list[str]:
    """The arguments of a command, with classes for names."""
    found: list[str] = []
    for each in args:
        if found and found[-1] in _OPTIONS:
            each = f"{found.pop()}={each}"
        option, _, value = each.partition("=")
        class_path = class_path_of(value) if option in _OPTIONS else None
        found.append(each if class_path is None else f"{_OPTIONS[option]}={class_path}")
    return found
