"""Optimizers, parameters and gradients for tests of the server's Updater."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.updater import Updater

SHAPES = ((3, 4), (5,), (2, 2), (1,), (4, 3))
Make = Callable[[Iterable[Any]], Optimizer]


class Sign(Optimizer):
    """A custom optimizer with values in its groups and in its attributes."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1, scale: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "seen": 0, "shape": len})
        self.scale = scale
        self.favourite = self.param_groups[0]["params"][0]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["seen"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                double = 2.0 if p is self.favourite else 1.0
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
                p -= group["lr"] / group["seen"] * double * self.scale * p.grad.sign()


class NeedsClosure(Sign):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "adam, rate as tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01, dtype=torch.float64)),
    "adam, fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.01),
    "asgd": lambda p: optim.ASGD(p, lr=0.01),
    "own": lambda p: Sign(p),
}


def parameters(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    return [Parameter(value.to(dtype)) for value in values]


def groups(of: Sequence[Parameter]) -> list[dict[str, Any]]:
    return [{"params": [*of[:2]]}, {"params": [of[2]], "weight_decay": 0.1}, {"params": [*of[3:]]}]


def gradients(step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [value.detach() for value in parameters(1000 + step, dtype)]


def plain_step(optimizer: Optimizer, own: Sequence[Parameter], values: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(own, values, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def servers(optimizer: Optimizer, own: Sequence[Parameter], cuts: Sequence[Sequence[int]]) -> Any:
    """One Updater for each list of indices in ``cuts``, and all tensors by index."""
    tensors = {index: own[index].detach().clone() for cut in cuts for index in cut}
    updaters = [Updater(optimizer, {own[index]: tensors[index] for index in cut}) for cut in cuts]
    return updaters, tensors


def serve(updaters: Iterable[Updater], step: int, dtype: torch.dtype = torch.float64) -> None:
    """Let each server make a step with its part of the gradients, flat as in messages."""
    for updater in updaters:
        updater.step([gradients(step, dtype)[index].flatten() for index in updater._indices])


def same_values(tensors: Mapping[int, Tensor], own: Sequence[Parameter]) -> bool:
    """Whether tensors are equal to the parameters of their index, to the last bit."""
    return all(torch.equal(tensor, own[index]) for index, tensor in tensors.items())


def same_state(one: Any, other: Any) -> bool:
    """Whether nested dictionaries and lists are equal, and tensors in them to the last bit."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_state, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)
