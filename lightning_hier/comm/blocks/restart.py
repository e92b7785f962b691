"""What a group leaves behind that starts again from the global model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Adagrad, Optimizer


def forget_state_(
    optimizer: Optimizer, parameters: Iterable[Parameter], carried: Sequence[Tensor]
) -> None:
    """Bring the state of ``optimizer`` for ``parameters`` back to where it begins, in place.

    State that holds NaN would spoil the model again at the next step. What a parameter's state
    shares with ``carried`` has just got its value from the healthy groups and stays; beside it,
    other tensors become zero. The state of other parameters is dropped, and the optimizer makes
    it anew at their next gradient.
    """
    kept = {id(tensor) for tensor in carried}
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        begun = isinstance(optimizer, Adagrad)  # makes its state before the first gradient
        if not begun and not any(id(value) in kept for value in state.values()):
            optimizer.state.pop(parameter, None)
            continue
        for value in state.values():
            if isinstance(value, Tensor) and id(value) not in kept:
                value.zero_()
        if begun and state:
            state["sum"].fill_(groups[parameter]["initial_accumulator_value"])
