"""Optimizer state of a local model that is not in the module, held by reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Clone = Callable[[Tensor], Tensor]

# A value and, if it is a tensor, its storage.
_Entry = tuple[Any, Tensor | None]
_Entries = dict[str, _Entry]


@dataclass
class SavedOptimizer:
    """State of each parameter, and settings of each parameter group.

    Settings include the learning rate and, for some optimizers, step counts and sums.
    """

    states: dict[Any, _Entries]
    groups: list[_Entries]

    @classmethod
    def of(cls, optimizer: Optimizer) -> SavedOptimizer:
        """Save by reference, without a copy."""
        return cls(
            {key: _entries(state) for key, state in optimizer.state.items()},
            [_entries(_settings(group)) for group in optimizer.param_groups],
        )

    def cloned(self, clone: Clone) -> SavedOptimizer:
        """The same values in separate storage."""
        return SavedOptimizer(
            {key: _cloned(entries, clone) for key, entries in self.states.items()},
            [_cloned(entries, clone) for entries in self.groups],
        )

    def restore(self, optimizer: Optimizer) -> None:
        """Replace the state and the settings of an optimizer."""
        for key in [key for key in optimizer.state if key not in self.states]:
            del optimizer.state[key]
        for key, entries in self.states.items():
            # The same dictionary, because the state of a block refers to it (ParameterSteps).
            state = optimizer.state[key]
            state.clear()
            _fill(state, entries)
        for group, entries in zip(optimizer.param_groups, self.groups, strict=True):
            for name in _settings(group).keys() - entries.keys():
                del group[name]
            _fill(group, entries)


class GroupChanges:
    """Detects changes of an optimizer's group settings, for example by schedulers.

    Args:
        optimizer: optimizer in its current state.

    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before = self._versions()

    def apply(self, saved: SavedOptimizer, clone: Clone) -> None:
        """Apply the same changes to the state of a model that was not in the module.

        Raises:
            ValueError: the optimizer has got other parameter groups.

        """
        before, now = len(saved.groups), len(self._optimizer.param_groups)
        if before != now:
            raise ValueError(
                f"an optimizer has {now} parameter groups instead of {before}, and the other local "
                "models of this rank have no state for them: create all groups in "
                "configure_optimizers(), or pass virtual_workers=1"
            )
        for old, new, group, entries in zip(
            self._before, self._versions(), self._optimizer.param_groups, saved.groups, strict=True
        ):
            for name in old.keys() - new.keys():
                entries.pop(name, None)
            # Each model gets tensors of its own, which its steps may change in place.
            changed = {name: group[name] for name in new if not _same(old.get(name), new[name])}
            entries.update(_cloned(_entries(changed), clone))

    def _versions(self) -> list[dict[str, tuple[Any, int]]]:
        """Values with their version counters, because a tensor may be changed in place."""
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
        name: (value, None if storage is None else clone(storage))
        for name, (value, storage) in entries.items()
    }


def _fill(target: dict[str, Any], entries: _Entries) -> None:
    for name, (value, storage) in entries.items():
        if storage is not None:
            value.data = storage  # the tensor stays, because others refer to it
        target[name] = value
