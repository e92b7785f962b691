"""Checks of the values of arguments: each error has the name, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from typing_extensions import Self


class NamedArguments:
    """Base of classes whose constructor says what was meant by an argument that it does not take.

    Raises:
        TypeError: the constructor has no such argument.

    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Compare the names with those of the constructor of the class, before it is called."""
        _, *parameters = signature(cls.__init__).parameters.values()
        if not any(own.kind is Parameter.VAR_KEYWORD for own in parameters):
            known = [own.name for own in parameters]
            for name in kwargs:
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__} has no argument {name!r}{did_you_mean(name, known)} It "
                        f"takes {', '.join(known) or 'none'}"
                    )
        return super().__new__(cls)

    def __init__(self) -> None:
        """Take nothing: object's own would take anything, since ``__new__`` does."""


def check_whole(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        ValueError: it is not.

    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_whole_or_auto(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is neither "auto" nor a whole number of at least ``least``.

    Raises:
        ValueError: it is not.

    """
    if isinstance(value, str) and value != "auto":
        raise ValueError(
            f"{name} must be 'auto' or a whole number of at least {least}, got {value!r}"
        )
    if value != "auto":
        check_whole(name, value, least=least)


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite number above 0.

    Raises:
        ValueError: it is not.

    """
    if not is_number(value) or not value > 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number of at least 0.

    Raises:
        ValueError: it is not.

    """
    if not is_number(value) or value < 0:  # type: ignore[operator]
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def check_share(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse what is no number above 0 (or of at least 0) and at most 1.

    Raises:
        ValueError: it is not.

    """
    above = "at least" if zero else "above"
    low = is_number(value) and (value >= 0 if zero else value > 0)  # type: ignore[operator]
    if not low or value > 1:  # type: ignore[operator]
        raise ValueError(f"{name} must be {above} 0 and at most 1, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ValueError: it is not.

    """
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is none of its choices.

    Raises:
        ValueError: it is not.

    """
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}, got {value!r}")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a mistyped name: the known names that are nearest, if any is."""
    near = get_close_matches(name, dict.fromkeys(known))
    return f": did you mean {' or '.join(map(repr, near))}?" if near else "."


def check_keys(what: str, found: object, needed: set[str], known: set[str]) -> Mapping[str, Any]:
    """The object of a JSON text, if it has what it needs and nothing else.

    Raises:
        ValueError: it is no object, lacks a key, or has one that nobody knows.

    """
    if not isinstance(found, Mapping):
        raise ValueError(f"{what} must be a JSON object, got {found!r}")
    if missing := sorted(needed - set(found)):
        raise ValueError(f"{what} lacks {', '.join(map(repr, missing))}; it has {sorted(found)}")
    if unknown := sorted(set(found) - known):
        raise ValueError(
            f"{what} has no {', '.join(map(repr, unknown))}; known are {', '.join(sorted(known))}"
        )
    return found


def is_number(value: object) -> bool:
    """Whether it is a finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
