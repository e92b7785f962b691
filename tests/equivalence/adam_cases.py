"""Training runs with Adam, AdamW, NAdam or RAdam, and their twins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tests.equivalence.adam_twins import AdamRecipe, AdamTwin, Kind, Rule, Rules
from tests.equivalence.cases import Case, symbols_of
from tests.equivalence.twins import Twin

_CLASSES: dict[Kind, type[Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}


@dataclass(frozen=True, kw_only=True)
class AdamCase(Case):
    """A run with an optimizer of the Adam family.

    Attributes:
        rule: settings of the optimizer for every parameter.
        biases: settings for biases, if they are different.
        options: further arguments of the optimizer.
        frozen_too: whether the optimizer holds frozen parameters as well.

    """

    recipe: AdamRecipe = field(default_factory=AdamRecipe)
    rule: Rule = field(default_factory=Rule)
    biases: Rule | None = None
    options: dict[str, Any] = field(default_factory=dict)
    frozen_too: bool = False

    @staticmethod
    def recipe_of(strategy: Callable[[], Any], world: int) -> AdamRecipe:
        sync = strategy().block_sync
        moments = {"corrected": sync.moments == "corrected", "every": sync.moments_every}
        return AdamRecipe(**symbols_of(strategy, world), **moments)

    def optimizer(self, net: nn.Module) -> Optimizer:
        held = {n: p for n, p in net.named_parameters() if p.requires_grad or self.frozen_too}
        groups = [
            {"params": [p for n, p in held.items() if self._rule(n) is rule], **_arguments(rule)}
            for rule in (self.rule, self.biases)
            if rule is not None
        ]
        return _CLASSES[self.rule.kind](groups, **self.options)

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        rules = [Rules(of={name: self._rule(name) for name in own}) for own in names]
        return AdamTwin(net, self.recipe, rules)

    def _rule(self, name: str) -> Rule:
        return self.biases if self.biases is not None and name.endswith("bias") else self.rule


def _arguments(rule: Rule) -> dict[str, Any]:
    more = {"momentum_decay": rule.psi} if rule.kind == "nadam" else {}
    decay = {"weight_decay": rule.weight_decay}
    return {"lr": rule.lr, "betas": rule.betas, "eps": rule.eps, **decay, **more}
