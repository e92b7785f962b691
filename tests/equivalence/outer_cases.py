"""Runs with an outer optimizer (DiLoCo), and their float64 twins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

from lightning_hier import DiLoCo, HierarchicalStrategy
from tests.equivalence.cases import Case
from tests.equivalence.twins import Block, Recipe, Twin, Values

MOMENTUM = {"momentum": 0.8, "lr": 0.05}
ADAMW = partial(torch.optim.AdamW, lr=0.02, betas=(0.6, 0.9), weight_decay=0.1)


def sgd_(w: Values, updates: Sequence[Values], *, nu: float, mu: float, nesterov: bool) -> None:
    """Algorithm 1 of DiLoCo with SGD: apply one outer step per mean local update, in place."""
    for name, value in w.items():
        m = torch.zeros_like(value)
        for g in updates:
            m = mu * m + g[name]
            value += nu * (g[name] + mu * m if nesterov else m)


def optimizer_(w: Values, updates: Sequence[Values], *, make: Callable[..., Any]) -> None:
    """Apply one step of a torch optimizer per mean local update, in place."""
    parameters = {name: Parameter(value) for name, value in w.items()}
    optimizer = make(list(parameters.values()))
    for g in updates:
        for name, parameter in parameters.items():
            parameter.grad = -g[name]
        optimizer.step()


@dataclass
class OuterBlock(Block):
    """A block whose W is computed from the initial W and all mean local updates so far."""

    outer_: Any = None
    first: Values = field(default_factory=dict)
    updates: tuple[Values, ...] = ()

    def moved(self, g: Values, recipe: Recipe) -> Block:
        """The next block, after one outer step with the mean local update ``g``."""
        first = self.first if self.updates else self.w
        updates = (*self.updates, g)
        w = {name: value.clone() for name, value in first.items()}
        self.outer_(w, updates)
        start = {name: value.clone() for name, value in w.items()}
        return OuterBlock(
            w, start, self.delta, self.steps, outer_=self.outer_, first=first, updates=updates
        )


@dataclass(frozen=True, kw_only=True)
class OuterCase(Case):
    """A run with an outer optimizer.

    Attributes:
        outer_: the outer steps of the twin, such as :func:`sgd_`.

    """

    outer_: Any = None

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """A twin whose blocks apply the outer optimizer."""
        twin = super().twin(net, names)
        twin.blocks = [OuterBlock(b.w, b.start, b.delta, outer_=self.outer_) for b in twin.blocks]
        return twin


def outer_case(
    name: str, outer_: Any = None, *, group: int = 1, run: Any = None, **sync: Any
) -> Any:
    """A run of DiLoCo with these settings. Without ``outer_``, the twin applies the outer SGD."""
    settings = {"block_size": 3, **sync}
    diloco = DiLoCo(**settings)
    if outer_ is None:
        nu, mu = diloco.outer_lr, diloco.outer_momentum
        # N of the automatic momentum is the number of groups.
        eta = 1 - nu * group / 4 if mu == "auto" else mu
        outer_ = partial(sgd_, nu=nu, mu=eta, nesterov=diloco.nesterov)
    recipe = Recipe(
        group=group, tau=diloco.block_size, local_momentum="keep", overlap=diloco.overlap,
        warmup=(run or {}).get("warmup", 0),
    )  # fmt: skip
    strategy = partial(
        HierarchicalStrategy,
        group_size=group,
        block_sync=diloco,
        warmup_steps=recipe.warmup,
        find_unused_parameters=True,
    )
    own = {key: value for key, value in (run or {}).items() if key != "warmup"}
    return OuterCase(
        name=name, strategy=strategy, recipe=recipe, outer_=outer_, **{**MOMENTUM, **own}
    )


ADAM_OUTSIDE = partial(optimizer_, make=ADAMW)
