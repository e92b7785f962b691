"""Checks of arguments. Each error states the name, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, ClassVar

from typing_extensions import Self


def counted(number: float, noun: str) -> str:
    """A number with its noun, for messages: ``1 group``, ``2 groups``."""
    return f"{number:g} {noun}{'s' * (number != 1)}"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """End of a sentence about a mistyped name, with similar known names if there are any."""
    near = get_close_matches(name, dict.fromkeys(known))  # each name once
    return f": did you mean {' or '.join(map(repr, near))}?" if near else "."


class NamedArguments:
    """Base class whose constructor suggests the right name for a mistyped argument.

    Attributes:
        taken_elsewhere: arguments that users look for here, and the class that takes them.

    Raises:
        TypeError: the constructor has no such argument.

    """

    taken_elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("block_sync", "gradient_sync", "group_size", "ranks_per_device", "warmup_steps"),
        "the strategy",
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the names of keyword arguments before the constructor is called."""
        # Not in __init__: a dataclass generates one that does not call the __init__ of its base.
        _, *parameters = signature(cls.__init__).parameters.values()
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            known = [parameter.name for parameter in parameters]
            for name in kwargs:
                if name not in known:
                    taker = cls.taken_elsewhere.get(name)
                    hint = (
                        f": it is an argument of {taker}." if taker else did_you_mean(name, known)
                    )
                    raise TypeError(
                        f"{cls.__name__} has no argument {name!r}{hint} "
                        f"It takes {', '.join(known) or 'none'}"
                    )
        return super().__new__(cls)

    def __init__(self) -> None:
        """Take no arguments. ``object.__init__`` would accept those that ``__new__`` accepts."""


def check_whole(name: str, value: object, *, least: int = 1) -> None:
    """Raise ValueError unless ``value`` is a whole number of at least ``least``."""
    # bool is a subclass of int: block_size=True would be a block of one step.
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_whole_or_auto(name: str, value: object, *, least: int = 1) -> None:
    """Raise ValueError unless ``value`` is "auto" or a whole number of at least ``least``."""
    if isinstance(value, str) and value != "auto":
        raise ValueError(
            f"{name} must be 'auto' or a whole number of at least {least}, got {value!r}"
        )
    if value != "auto":
        check_whole(name, value, least=least)


def check_positive(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a finite number above 0."""
    if not is_number(value) or not value > 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a finite number of at least 0."""
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_share(name: str, value: object, *, zero: bool = False) -> None:
    """Raise ValueError unless ``value`` is above 0 (or at least 0) and at most 1."""
    above = "at least" if zero else "above"
    low = is_number(value) and (value >= 0 if zero else value > 0)  # type: ignore[operator]
    if not low or value > 1:  # type: ignore[operator]
        raise ValueError(f"{name} must be {above} 0 and at most 1, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless ``value`` is one of the choices."""
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number. True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
