"""Settings in words: those of two processes are the same where the settings are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import lightning_hier as lh
from lightning_hier.strategies.settings import comparable


class State:
    """Says nothing of itself."""


def hook(state: Any, bucket: Any) -> None:
    """A hook."""


def test_nothing_is_compared_by_where_it_lies() -> None:
    """Addresses are others in every process."""
    settings = {"gradient_sync": lh.CommHook(hook, State()), "of": hook, "held": State()}
    assert comparable(settings) == {
        "gradient_sync": "CommHook(hook=hook, state=State, bytes_per_element=None)",
        "of": "hook",
        "held": "State",
    }


def test_what_is_compared_shows_every_difference() -> None:
    one, other = (comparable({"block_sync": lh.BMUF(block_size=n)}) for n in (3, 4))
    assert one["block_sync"].replace("block_size=3", "block_size=4") == other["block_sync"]
    assert one != other
    assert comparable({"a": 1, "b": None, "c": timedelta(seconds=2)}) == {
        "a": 1,
        "b": None,
        "c": "datetime.timedelta(seconds=2)",
    }
