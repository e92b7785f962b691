"""The server's Updater: a copy of the user's optimizer over tensors of a server."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer, SparseAdam

from lightning_hier.parameter_server.user_optimizer import (
    NOT_HYPERPARAMETERS,
    Hyperparameters,
    hyperparameters,
)

# State of single parameters, by their index in the user's optimizer, as in its ``state_dict``.
ParameterStates = dict[int, dict[str, Any]]


def objection(optimizer: Optimizer) -> str | None:
    """Why this optimizer can't be a server's Updater; None if it can."""
    name = type(optimizer).__name__
    if isinstance(optimizer, LBFGS):
        return f"{name} calls its closure several times a step; a server has gradients only"
    if isinstance(optimizer, SparseAdam):
        return f"{name} wants sparse gradients, which are not sent"
    if _needs_closure(optimizer):
        return f"{name}.step() needs a closure; a server has gradients only"
    for index, group in enumerate(optimizer.param_groups):
        if "lr" not in group:
            return f"parameter group {index} of {name} has no learning rate (lr) to scale"
        for option in ("capturable", "differentiable"):
            if group.get(option):
                return f"parameter group {index} of {name} has {option}=True: leave it out"
    return None


def _needs_closure(optimizer: Optimizer) -> bool:
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(
        argument.default is argument.empty
        for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    )


class Updater:
    """A copy of an optimizer, with the same hyperparameters, over other tensors.

    The user's optimizer is read and never changed; what schedulers, hooks and strategies have
    attached to it is not copied. The copy is of the same class and holds the same parameter
    groups in the same order, with only those parameters in them that the server has. Its state
    starts as that of the user's optimizer, which never steps: mostly empty. It works for every
    optimizer that treats its parameters one by one.

    The factor of a step multiplies the learning rate of that step. Two optimizers of torch don't
    follow it at once: ASGD takes the rate of a step from the step before, and Rprop its first
    step size from the first.

    Args:
        optimizer: the user's; its :func:`objection` must be None.
        tensors: values on the host of those parameters that this server has, of the same shapes;
            a subset of the optimizer's parameters, perhaps none. Updated in place.

    """

    def __init__(self, optimizer: Optimizer, tensors: Mapping[Parameter, Tensor]) -> None:
        # References, since most optimizers have none yet; Adagrad makes it when it is made.
        self._start = [dict(optimizer.state.get(p, {})) for p in _parameters(optimizer)]
        self._told: Hyperparameters = hyperparameters(optimizer)
        # Attributes of an optimizer of the user's own may mention parameters.
        elsewhere = {id(p): Parameter(torch.empty(0)) for p in _parameters(optimizer)}
        own = {id(p): Parameter(tensor) for p, tensor in tensors.items()}
        self._copy = _copied(optimizer, elsewhere | own)
        self._group_of = [
            place for place, group in enumerate(optimizer.param_groups) for _ in group["params"]
        ]
        index_of = {parameter: index for index, parameter in enumerate(_parameters(optimizer))}
        self._hold({index_of[parameter]: own[id(parameter)] for parameter in tensors})
        self.reset()

    def sibling(self, tensors: Mapping[int, Tensor]) -> Updater:
        """The same optimizer, with the hyperparameters of now, over other tensors, as if new.

        Args:
            tensors: by index of the parameter in the user's optimizer. Updated in place.

        """
        other = copy.copy(self)
        other._copy = _copied(self._copy, {id(p): Parameter(torch.empty(0)) for p in self._own})
        other._hold({index: Parameter(tensor) for index, tensor in tensors.items()})
        other.reset()
        return other

    @property
    def indices(self) -> list[int]:
        """The server's parameters by their index in the user's optimizer, in order of ``tensors``.

        :meth:`step` takes gradients in this order.
        """
        return list(self._indices)

    def step(
        self,
        gradients: Sequence[Tensor | None],
        *,
        rate_factor: float = 1.0,
        hyperparameters: Hyperparameters | None = None,
    ) -> None:
        """Update the tensors in place: ``w <- w - rate_factor * lr * Updater(gradient)``.

        Args:
            gradients: one for each tensor, of as many elements, of any shape; None where a
                parameter takes no part in this step.
            rate_factor: multiplies every learning rate in this step; the rates stay as they were.
            hyperparameters: of the worker that is furthest ahead, as :func:`hyperparameters` gives
                them; None: those of the last step.

        """
        if hyperparameters is not None:
            self._take(hyperparameters)
        for tensor, gradient in zip(self._own, gradients, strict=True):
            tensor.grad = None if gradient is None else gradient.to(tensor.dtype).view(tensor.shape)
        rates = [group["lr"] for group in self._copy.param_groups]
        try:
            for group, rate in zip(self._copy.param_groups, rates, strict=True):
                group["lr"] = rate * rate_factor if rate_factor != 1.0 else rate
            self._copy.step()
        finally:
            for group, rate in zip(self._copy.param_groups, rates, strict=True):
                group["lr"] = rate
            for tensor in self._own:
                tensor.grad = None

    def reset(self) -> None:
        """Give all parameters the state that the user's optimizer had for them at the start."""
        self._copy.state.clear()
        for index, tensor in zip(self._indices, self._own, strict=True):
            for name, value in self._start[index].items():
                self._copy.state[tensor][name] = _detached(value)

    def state(self) -> ParameterStates:
        """Copies of the state of the server's parameters, by index in the user's optimizer.

        Merged over all servers it is the entry ``state`` of the user's ``optimizer.state_dict()``
        as if that had made all steps, so a plain optimizer can load it.
        """
        local: Mapping[int, Mapping[str, Any]] = self._copy.state_dict()["state"]
        places = self._places()
        return {
            index: {name: _detached(value) for name, value in local[places[index]].items()}
            for index in self._indices
            if places[index] in local
        }

    def load(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over the state of the server's parameters from that of a whole optimizer.

        Args:
            states: the entry ``state`` of ``optimizer.state_dict()``; copied. Parameters that are
                not in it start without state.

        """
        places = self._places()
        found = {
            places[index]: {name: _detached(value) for name, value in states[index].items()}
            for index in self._indices
            if index in states
        }
        plain = self._copy.state_dict()
        self._copy.load_state_dict({**plain, "state": found})
        # load_state_dict gives state the dtype of its parameter, which makes sense for moments but
        # not for single numbers; of those it spares the one called "step" alone.
        for index, tensor in zip(self._indices, self._own, strict=True):
            for name, value in found.get(places[index], {}).items():
                if name != "step" and isinstance(value, Tensor) and value.ndim == 0:
                    self._copy.state[tensor][name] = value.clone()

    def _hold(self, tensors: Mapping[int, Parameter]) -> None:
        self._indices = list(tensors)
        self._own = list(tensors.values())
        for place, group in enumerate(self._copy.param_groups):
            group["params"] = [
                tensors[index] for index in sorted(tensors) if self._group_of[index] == place
            ]

    def _places(self) -> dict[int, int]:
        """Where the copy numbers a parameter, by where the user's optimizer does."""
        ordered = sorted(self._indices)
        return {index: place for place, index in enumerate(ordered)}

    def _take(self, told: Hyperparameters) -> None:
        """Follow what has changed on the worker.

        The rest may be what this optimizer itself keeps in its groups and moves in every step.
        """
        for group, new, old in zip(self._copy.param_groups, told, self._told, strict=True):
            for name, value in new.items():
                if name not in old or old[name] != value:
                    was_tuple = isinstance(group.get(name), tuple)
                    group[name] = tuple(value) if was_tuple else value
        self._told = told


def _parameters(optimizer: Optimizer) -> Iterator[Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _copied(optimizer: Optimizer, tensors: dict[int, Parameter]) -> Optimizer:
    """An optimizer of the same class and settings, without parameters, state and hooks.

    Args:
        optimizer: what to copy.
        tensors: what stands in the copy for each of its parameters, by their ``id``.

    """
    kept = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in ("state", "param_groups", "_opt_called") and not _attached(optimizer, name)
    }
    groups = [
        {name: _number(value) for name, value in group.items() if name not in NOT_HYPERPARAMETERS}
        for group in optimizer.param_groups
    ]
    # The table of deepcopy is by id: so tensors of the server take the place of parameters.
    memo: dict[int, Any] = dict(tensors)
    copied: Optimizer = object.__new__(type(optimizer))
    state = {
        **copy.deepcopy(kept, memo),
        "state": defaultdict(dict),
        "param_groups": [{**group, "params": []} for group in copy.deepcopy(groups, memo)],
    }
    copied.__setstate__(state)
    return copied


def _attached(optimizer: Optimizer, name: str) -> bool:
    """Whether others have put this on the optimizer: hooks, or methods over those of its class."""
    value = vars(optimizer)[name]
    hooks = isinstance(value, OrderedDict) and name.endswith("_hooks")
    return hooks or callable(getattr(type(optimizer), name, None))


def _number(value: Any) -> Any:
    """Rates that are tensors may lie on a device, and some kernels refuse them."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _detached(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
