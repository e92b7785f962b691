"""Settings in plain words, for files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def described(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON can say them.

    A choice that is an object, such as ``block_sync=BMUF(...)``, becomes the name of its class and
    its settings beside it.
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if is_dataclass(value) and not isinstance(value, type):
            found[name] = type(value).__name__
            found |= described({f.name: getattr(value, f.name) for f in fields(value)})
        else:
            found[name] = _plain(value)
    return found


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by which ranks compare themselves: objects by all that they hold.

    Functions, and objects that say nothing of themselves, go by their names: their addresses are
    others in every process.
    """
    return {name: value if _is_plain(value) else _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        held = ", ".join(f"{f.name}={_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({held})"
    if callable(value) or type(value).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        return str(_plain(value))
    return repr(value)


def _plain(value: Any) -> Any:
    if _is_plain(value):
        return value
    return getattr(value, "__qualname__", type(value).__name__)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
