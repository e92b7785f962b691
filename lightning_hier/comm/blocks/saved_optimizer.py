"""What an optimizer keeps for a local model that is not in the module, and its way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Clone = Callable[[Tensor], Tensor]

# Value, and what it holds if it is a tensor.
_Entry = tuple[Any, Tensor | None]
_Entries = dict[str, _Entry]


@dataclass
class SavedOptimizer:
    """State of each parameter, and what is in the groups beside parameters.

    A learning rate is in a group, and so are the step counts and sums of many optimizers.
    """

    states: dict[Any, _Entries]
    groups: list[_Entries]

    @classmethod
    def of(cls, optimizer: Optimizer) -> SavedOptimizer:
        """By reference: nothing is copied."""
        return cls(
            {key: _entries(state) for key, state in optimizer.state.items()},
            [_entries(_settings(group)) for group in optimizer.param_groups],
        )

    def cloned(self, clone: Clone) -> SavedOptimizer:
        """The same values in memory of their own."""
        return SavedOptimizer(
            {key: _cloned(entries, clone) for key, entries in self.states.items()},
            [_cloned(entries, clone) for entries in self.groups],
        )

    def put_back(self, optimizer: Optimizer) -> None:
        """Give an optimizer all of it, in the place of what it has."""
        for gone in [key for key in optimizer.state if key not in self.states]:
            del optimizer.state[gone]
        for key, entries in self.states.items():
            state = optimizer.state[key]
            state.clear()
            _fill(state, entries)
        for group, entries in zip(optimizer.param_groups, self.groups, strict=False):
            for name in _settings(group).keys() - entries.keys():
                del group[name]
            _fill(group, entries)


class GroupChanges:
    """Finds what has been changed in the groups of an optimizer, as schedulers do.

    Args:
        optimizer: as it is now.

    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = self._marks()

    def tell(self, away: SavedOptimizer, clone: Clone) -> None:
        """Make the same changes for a model that was away meanwhile."""
        for old, new, group, entries in zip(
            self._before, self._marks(), self._optimizer.param_groups, away.groups, strict=False
        ):
            for name in old.keys() - new.keys():
                entries.pop(name, None)
            changed = {name: group[name] for name in new if not _same(old.get(name), new[name])}
            entries.update(_cloned(_entries(changed), clone))

    def _marks(self) -> list[dict[str, tuple[Any, int]]]:
        """Each value and how often it was written to in place."""
        return [
            {
                name: (value, value._version if isinstance(value, Tensor) else 0)
                for name, value in _settings(group).items()
            }
            for group in self._optimizer.param_groups
        ]


def _same(old: tuple[Any, int] | None, new: tuple[Any, int]) -> bool:
    return old is not None and old[0] is new[0] and old[1] == new[1]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _entries(values: Mapping[str, Any]) -> _Entries:
    return {
        name: (value, value.data if isinstance(value, Tensor) else None)
        for name, value in values.items()
    }


def _cloned(entries: _Entries, clone: Clone) -> _Entries:
    return {
        name: (value, None if held is None else clone(held))
        for name, (value, held) in entries.items()
    }


def _fill(target: dict[str, Any], entries: _Entries) -> None:
    for name, (value, held) in entries.items():
        if held is not None:
            value.data = held
        target[name] = value
