"""Settings in words: those of two processes are the same where the settings are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import lightning_hier as lh
from lightning_hier.strategies.settings import described


class State:
    """Says nothing of itself."""


def hook(state: Any, bucket: Any) -> None:
    """A hook."""


def test_nothing_is_compared_by_where_it_lies() -> None:
    """Addresses are others in every process."""
    settings = {"gradient_sync": lh.CommHook(hook, State()), "of": hook, "held": State()}
    assert described(settings) == {
        "gradient_sync": "CommHook",
        "hook": "hook",
        "state": "State",
        "bytes_per_element": None,
        "of": "hook",
        "held": "State",
    }


def test_what_is_compared_shows_every_difference() -> None:
    one, other = (described({"block_sync": lh.BMUF(block_size=n)}) for n in (3, 4))
    assert one | {"block_size": 4} == other
    assert one != other
    assert described({"a": 1, "b": None, "c": timedelta(seconds=2)}) == {
        "a": 1,
        "b": None,
        "c": "datetime.timedelta(seconds=2)",
    }
