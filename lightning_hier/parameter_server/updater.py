"""The Updater of a server: a copy of the user's optimizer for the server's tensors.

Also what servers need of the user's optimizer: hyperparameters, trainable parameters, objections.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer, SparseAdam

from lightning_hier.comm.blocks.trained import optimizer_parameters
from lightning_hier.comm.profiling import profiler_range

# State of single parameters, by their index in the user's optimizer, as in its ``state_dict``.
ParameterStates = dict[int, dict[str, Any]]
# Hyperparameters of every parameter group, by name; values that JSON can represent.
Hyperparameters = Sequence[Mapping[str, Any]]

# Entries of Optimizer.param_groups that are not hyperparameters.
NOT_HYPERPARAMETERS = ("params", "param_names")


class Updater:
    """A copy of an optimizer, with the same hyperparameters, over other tensors.

    The user's optimizer is read and never changed. Attachments of schedulers, hooks and strategies
    are not copied. The copy has the same class and the same parameter groups in the same order, but
    only the parameters of the server. Its state starts as that of the user's optimizer, which never
    steps: mostly empty. It works for every optimizer that treats its parameters one by one.

    The factor of a step multiplies the learning rate of that step. Two optimizers of torch follow
    it late: ASGD by one step, and Rprop in its first step only.

    Args:
        optimizer: optimizer of the user; its :func:`.objection` must be None.
        tensors: values on the host of the server's parameters, of the same shapes, in the order of
            the optimizer; may be empty. Updated in place.

    """

    def __init__(self, optimizer: Optimizer, tensors: Mapping[Parameter, Tensor]) -> None:
        # References, since most optimizers have no state yet; Adagrad has from the start.
        parameters = optimizer_parameters(optimizer)
        self._start = [dict(optimizer.state.get(p, {})) for p in parameters]
        self._latest: Hyperparameters = hyperparameters(optimizer)
        # Attributes of a user's optimizer class may refer to parameters.
        elsewhere = {id(p): Parameter(torch.empty(0)) for p in parameters}
        served = {id(p): Parameter(tensor) for p, tensor in tensors.items()}
        self._copy = _copied(optimizer, elsewhere | served)
        self._group_of = [
            at for at, group in enumerate(optimizer.param_groups) for _ in group["params"]
        ]
        index_of = {parameter: index for index, parameter in enumerate(parameters)}
        self._hold({index_of[parameter]: served[id(parameter)] for parameter in tensors})
        self.reset()

    def step(
        self,
        gradients: Sequence[Tensor | None],
        *,
        rate_factor: float = 1.0,
        hyperparameters: Hyperparameters | None = None,
    ) -> None:
        """Update the tensors in place: ``w <- w - rate_factor * lr * Updater(gradient)``.

        Args:
            gradients: one for each tensor, of as many elements, of any shape; None for a parameter
                that this step does not update.
            rate_factor: multiplies every learning rate in this step only.
            hyperparameters: hyperparameters of the most advanced worker; None: those of the last
                step.

        """
        if hyperparameters is not None:
            self._take(hyperparameters)
        for tensor, gradient in zip(self._own, gradients, strict=True):
            tensor.grad = None if gradient is None else gradient.to(tensor.dtype).view(tensor.shape)
        rates = [group["lr"] for group in self._copy.param_groups]
        try:
            for group, rate in zip(self._copy.param_groups, rates, strict=True):
                group["lr"] = rate * rate_factor if rate_factor != 1.0 else rate
            with profiler_range("hier/parameter_server/update"):
                self._copy.step()
        finally:
            for group, rate in zip(self._copy.param_groups, rates, strict=True):
                group["lr"] = rate
            # Gradients are as large as the values. ServedValues frees them before it copies these.
            for tensor in self._own:
                tensor.grad = None

    def reset(self) -> None:
        """Reset the state of all parameters to that of the user's optimizer at the start."""
        self._copy.state.clear()
        for index, tensor in zip(self._indices, self._own, strict=True):
            for name, value in self._start[index].items():
                self._copy.state[tensor][name] = _detached(value)

    def state(self) -> ParameterStates:
        """Copies of the state of the server's parameters, by index in the user's optimizer.

        Merged over all servers it is the entry ``state`` of the user's ``optimizer.state_dict()``,
        so a plain optimizer can load it.
        """
        local = self._copy.state_dict()["state"]
        return {
            index: {name: _detached(value) for name, value in local[position].items()}
            for position, index in enumerate(self._indices)
            if position in local
        }

    def load(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Load the state of the server's parameters from that of a whole optimizer.

        Args:
            states: the entry ``state`` of ``optimizer.state_dict()``; copied.

        """
        by_position = {
            position: {name: _detached(value) for name, value in states[index].items()}
            for position, index in enumerate(self._indices)
            if index in states
        }
        plain = self._copy.state_dict()
        self._copy.load_state_dict({**plain, "state": by_position})
        # load_state_dict casts state to the dtype of its parameter, which is right for moments but
        # not for scalars; of those it spares only "step".
        for position, state in by_position.items():
            for name, value in state.items():
                if name != "step" and isinstance(value, Tensor) and value.ndim == 0:
                    self._copy.state[self._own[position]][name] = value.clone()

    def _hold(self, tensors: Mapping[int, Parameter]) -> None:
        self._indices = list(tensors)
        self._own = list(tensors.values())
        for at, group in enumerate(self._copy.param_groups):
            group["params"] = [p for index, p in tensors.items() if self._group_of[index] == at]

    def _take(self, latest: Hyperparameters) -> None:
        """Take hyperparameters that have changed on the worker.

        The others may be values that the optimizer itself changes in its groups in every step.
        """
        for group, new, old in zip(self._copy.param_groups, latest, self._latest, strict=True):
            for name, value in new.items():
                if name not in old or old[name] != value:
                    # JSON turns tuples, such as betas, into lists.
                    was_tuple = isinstance(group.get(name), tuple)
                    group[name] = tuple(value) if was_tuple else value
        self._latest = latest


def _copied(optimizer: Optimizer, tensors: dict[int, Parameter]) -> Optimizer:
    """An optimizer of the same class and settings, without parameters, state and hooks.

    Args:
        optimizer: what to copy.
        tensors: replacement of each of its parameters, by their ``id``.

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
    # deepcopy's memo is by id, so the server's tensors replace the parameters.
    memo: dict[int, Any] = dict(tensors)
    # Not by the constructor, whose arguments are unknown.
    copied: Optimizer = object.__new__(type(optimizer))
    state = {
        **copy.deepcopy(kept, memo),
        "state": defaultdict(dict),
        "param_groups": [{**group, "params": []} for group in copy.deepcopy(groups, memo)],
    }
    # Not by update of __dict__: it also creates the tables of hooks, which are not copied.
    copied.__setstate__(state)
    return copied


def _attached(optimizer: Optimizer, name: str) -> bool:
    """Whether an attribute was attached to the optimizer: hooks, or replaced methods."""
    hooks = isinstance(vars(optimizer)[name], OrderedDict) and name.endswith("_hooks")
    return hooks or callable(getattr(type(optimizer), name, None))


def _number(value: Any) -> Any:
    """Tensors of one element as numbers: rates may be on a device, which some kernels refuse."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _detached(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def hyperparameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The hyperparameters of every parameter group, for JSON.

    Tensors of one element become numbers, and tuples become lists. Values that JSON cannot
    represent are left out: no scheduler changes them, and the Updater has copied them at the start.
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        groups.append({})
        for name, value in group.items():
            plain = NotImplemented if name in NOT_HYPERPARAMETERS else _plain(value)
            if plain is not NotImplemented:
                groups[-1][name] = plain
    return groups


# NotImplemented stands for values that JSON cannot represent, because None is the value of options
# such as foreach.
def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return NotImplemented if any(item is NotImplemented for item in items) else items
    return NotImplemented


def trainable(optimizer: Optimizer) -> list[Parameter]:
    """The trainable parameters of an optimizer, in its order."""
    return [parameter for parameter in optimizer_parameters(optimizer) if parameter.requires_grad]


def objection(optimizer: Optimizer) -> str | None:
    """Why an optimizer cannot be a server's Updater; None if it can."""
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
    # Of the class, because a learning rate scheduler replaces the method of the object.
    arguments = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return any(
        argument.default is argument.empty
        for argument in arguments
        if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    )
