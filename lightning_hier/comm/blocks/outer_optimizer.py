"""The outer step by an optimizer of ``torch.optim`` (DiLoCo)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.reference import SumOfSquares
from lightning_hier.comm.blocks.outer_step import OuterStep

OuterOptimizer = Callable[[Iterable[Parameter]], Optimizer]
"""Makes an optimizer of the given parameters."""


class OptimizerStep(OuterStep):
    """Steps an optimizer with minus the mean local update as the gradient (diloco alg. 1).

    With the local update ``u_k(t)`` of group k, its model minus W(t-1)::

        gradient(t) = -(mean over k of u_k(t))
        W(t)        = optimizer step from W(t-1) with gradient(t)

    A block starts from W, so the look-ahead of Nesterov momentum is part of the global model.

    A range of elements that is stepped is a parameter with an optimizer of its own, so ranges can
    be stepped as their means arrive. Optimizer state with a value for each element lies in flat
    vectors, which are saved and divided among ranks as W is.

    Args:
        make: makes the optimizer.
        global_model: as in :class:`OuterStep`.

    """

    def __init__(self, make: OuterOptimizer, global_model: Tensor) -> None:
        super().__init__(global_model, from_updates=True)
        self._make = make
        for name in _elementwise_state(make):
            self.vectors[name] = torch.zeros_like(global_model)
        # By the start of the range, of which each has one parameter.
        self._optimizers: dict[int, Optimizer] = {}
        # Other state, such as a step count, of each range. Between two synchronisations it is the
        # same for all ranges, but within one, some have been stepped and others have not.
        self._scalars: dict[int, dict[str, Any]] = {}
        # That of ranges that have not been stepped since a state was loaded; None: they start.
        self._loaded: dict[str, Any] | None = None

    def start_model(self, place: slice) -> Tensor:
        """W itself."""
        return self.vectors["global_model"][place]

    def prepare_(self, model: Tensor, place: slice) -> SumOfSquares:
        """See :class:`OuterStep`."""
        start = self.start_model(place)
        return kernels_for(model, start).subtract_start_(model, start, None, 0.0)

    def apply_(self, mean: Tensor, place: slice) -> tuple[SumOfSquares, SumOfSquares]:
        """See :class:`OuterStep`."""
        model, kernels = self.start_model(place), kernels_for(mean)
        # Both before the step: the parameter is a view of W, and the mean becomes its gradient.
        before, squares = model.clone(), kernels.sum_of_squares(mean)
        optimizer = self._optimizer(place)
        [parameter] = optimizer.param_groups[0]["params"]
        parameter.grad = mean.neg_()
        optimizer.step()
        parameter.grad = None  # it may be a view of the transfer buffer, which will be freed
        self._scalars[place.start] = self._keep_state(optimizer.state[parameter], place)
        mean.copy_(model)
        return squares, kernels.sum_of_squares(before.sub_(model))

    def preview(self, place: slice, device: torch.device | None = None) -> OuterStep:
        """See :class:`OuterStep`."""
        ahead = super().preview(place, device)
        assert isinstance(ahead, OptimizerStep)
        ahead._optimizers, ahead._scalars = {}, {}
        ahead._loaded = self._scalars.get(place.start, self._loaded)
        return ahead

    def keep_(self, ahead: OuterStep, place: slice) -> None:
        """See :class:`OuterStep`."""
        super().keep_(ahead, place)
        assert isinstance(ahead, OptimizerStep)
        self._scalars[place.start] = ahead._scalars[0]

    def adopt(self, saved: Mapping[str, Any], model: Tensor, *, pending: bool) -> dict[str, Any]:
        """See :class:`OuterStep`. State of another optimizer is dropped."""
        state = super().adopt(saved, model, pending=pending)
        same = all(saved.get(name) is not None for name in self.vectors)
        return {**state, "scalars": saved.get("scalars") if same else None}

    def settings(self) -> dict[str, Any]:
        """State that is the same for all elements."""
        scalars = next(iter(self._scalars.values()), self._loaded)
        return {"scalars": scalars}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :class:`OuterStep`."""
        super().load(state)
        # The next step of a range creates its optimizer again, with the loaded state.
        self._optimizers.clear()
        self._scalars.clear()
        self._loaded = state.get("scalars")

    def _optimizer(self, place: slice) -> Optimizer:
        if place.start not in self._optimizers:
            parameter = Parameter(self.start_model(place))
            optimizer = self._make([parameter])
            scalars = self._scalars.get(place.start, self._loaded)
            # Without any, the optimizer must create its state itself at its first step.
            if scalars is not None:
                vectors = {n: v[place] for n, v in self.vectors.items() if n != "global_model"}
                optimizer.state[parameter] = {**deepcopy(scalars), **vectors}
            self._optimizers[place.start] = optimizer
        return self._optimizers[place.start]

    def _keep_state(self, state: dict[str, Any], place: slice) -> dict[str, Any]:
        """Move state with a value for each element into the vectors; the rest of the state."""
        for name in self.vectors.keys() & state.keys():
            vector = self.vectors[name][place]
            # State that the optimizer has created or replaced. From now on it updates the vector.
            if state[name].data_ptr() != vector.data_ptr():
                vector.copy_(state[name])
                state[name] = vector
        return {name: value for name, value in state.items() if name not in self.vectors}


def check_outer_optimizer(make: OuterOptimizer) -> None:
    """Check that ``make`` makes an optimizer that treats each element of a parameter by itself.

    Raises:
        ValueError: it does not.

    """
    example = "such as partial(torch.optim.SGD, lr=0.7)"
    if not callable(make):
        raise ValueError(
            f"outer_optimizer must be callable with parameters, {example}, got {make!r}"
        )
    try:
        start, gradient = torch.arange(1.0, 5.0), torch.tensor([4.0, -1.0, 0.5, 2.0])
        # Compared bit for bit, because no result may depend on the division into shards.
        whole = _stepped(make, start, gradient)[0]
        halves = zip(start.split(2), gradient.split(2), strict=True)
        parts = [_stepped(make, *half)[0] for half in halves]
    except Exception as error:
        raise ValueError(
            "outer_optimizer must make an optimizer that steps flat parameters without a closure, "
            f"{example}, got {make!r}: {error}"
        ) from error
    if not torch.equal(whole, torch.cat(parts)):
        raise ValueError(
            "outer_optimizer must treat each element by itself, since every rank steps a part of "
            f"the model, {example}, got {make!r}, whose step depends on the other elements"
        )


def _stepped(
    make: OuterOptimizer, start: Tensor, gradient: Tensor
) -> tuple[Tensor, Mapping[str, Any]]:
    """A parameter after two steps from ``start``, the second by the square, and its state."""
    parameter = Parameter(start.clone())
    optimizer = make([parameter])
    # Two different gradients, so that state of the first step has an effect on the second.
    for step_gradient in (gradient, gradient.square()):
        parameter.grad = step_gradient.clone()
        optimizer.step()
    return parameter.detach(), optimizer.state[parameter]


def _elementwise_state(make: OuterOptimizer) -> list[str]:
    """Names of the state that has a value for each element of a parameter."""
    parameter, state = _stepped(make, torch.ones(2), torch.ones(2))
    return [
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]
