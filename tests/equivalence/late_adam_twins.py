"""Float64 twin of BMUF-Adam in fragments, with or without a delay.

The moments of a fragment are applied together with its update. Every worker then takes the moments
at the start model, and applies all gradients since the send to them again. The package computes the
same by linearity.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier import BMUFAdam
from tests.equivalence.adam_cases import AdamCase
from tests.equivalence.adam_twins import AdamRecipe, AdamWorker, Memory, Rule, Rules, eq_18
from tests.equivalence.cases import case
from tests.equivalence.fragment_twins import FragmentTwin, Part, Timing, block_momentum
from tests.equivalence.twins import Twin


class LateAdamWorker(AdamWorker):
    """Stores its gradients since the send, and its distance from the start model in steps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.since: dict[str, list[Tensor]] = {name: [] for name in self.memory}
        self.position = dict.fromkeys(self.memory, 0.0)

    def descend(self, name: str, gradient: Tensor, rules: Rules) -> None:  # type: ignore[override]
        """Apply one step, from the algorithm box of the optimizer."""
        rule = rules.of[name]
        decays = rule.kind != "adamw"
        decay = rule.weight_decay * self.values()[name] if decays else 0.0
        self.since[name].append(gradient + decay)
        self.position[name] += 1.0
        super().descend(name, gradient, rules)

    def begin_from(self, name: str, start: Memory, rule: Rule) -> None:
        """Take other moments, and apply the gradients since the send to them again."""
        state = start.copied()
        beta1, beta2 = rule.betas
        for gradient in self.since[name]:
            state.k, state.tau = state.k + 1, state.tau + 1
            state.m = beta1 * state.m + (1 - beta1) * gradient
            state.v = beta2 * state.v + (1 - beta2) * gradient**2
            state.product *= rule.mu(state.k) if rule.kind == "nadam" else 1.0
        self.memory[name] = state


Groups = Sequence[tuple[LateAdamWorker, float]]


class LateAdamTwin(FragmentTwin):
    """Fragments with Adam's moments, with one optimizer, Nesterov block momentum and zeta = 1."""

    workers: list[LateAdamWorker]  # type: ignore[assignment]

    def __init__(self, model: nn.Module, recipe: AdamRecipe, rules: Rules) -> None:
        super().__init__(model, recipe, [rules])  # type: ignore[list-item]
        self.workers = [LateAdamWorker(deepcopy(model).double()) for _ in range(recipe.world)]
        self._rules, self._symbols = rules.of, recipe
        self._begin = {name: one.copied() for name, one in self.workers[0].memory.items()}
        self._rho = dict.fromkeys(self._begin, 0.0)
        self._ahead = dict.fromkeys(self._begin, 0.0)
        self._update = dict.fromkeys(self._begin, 0.0)
        self._arriving: dict[str, Memory] = {}
        self._sends = dict.fromkeys(self._begin, 0)

    @property
    def _new_start(self) -> float:
        """Weight of the start model in the merge."""
        return 1.0 if self.timing.merge == "progress" else 1.0 - self.timing.merge

    def _send(self, part: Part) -> None:
        groups, eta = self._groups(part)
        for name in part.names:
            self._sends[name] += 1
            self._count(name, groups, eta)
            if self._sends[name] % self._symbols.every == 0:
                self._arriving[name] = self._next(name, groups)
            for worker in self.workers:
                worker.since[name] = []
                if self.timing.merge == "progress":
                    worker.position[name] = 0.0
        super()._send(part)

    def _groups(self, part: Part) -> tuple[Groups, float]:
        """The groups, each with its weight in the mean, and eta for this mean."""
        leaders = self.workers[:: self.recipe.group]
        return [(worker, 1 / len(leaders)) for worker in leaders], self.recipe.eta

    def _count(self, name: str, groups: Groups, eta: float) -> None:
        """Update rho, the number of steps in Delta, by the mean distance from the start model."""
        self._update[name] = sum(weight * worker.position[name] for worker, weight in groups)
        self._rho[name] = eta * self._rho[name] + self._update[name]
        self._ahead[name] = eta * self._rho[name]

    def _next(self, name: str, groups: Groups) -> Memory:
        """The moments at the start model, as if all workers had this model at the send."""
        ends = [(worker.memory[name], weight) for worker, weight in groups]
        begin, rule = self._begin[name], self._rules[name]
        tau = sum(weight * end.tau for end, weight in ends)
        if tau == 0:
            return begin
        ahead = self._new_start * self._ahead[name] if self._symbols.corrected else 0.0
        mean_m = torch.stack([weight * end.m for end, weight in ends]).sum(0)
        mean_v = torch.stack([weight * end.v for end, weight in ends]).sum(0)
        return Memory(
            eq_18(mean_m, begin.m, rule.betas[0], tau, ahead),
            eq_18(mean_v, begin.v, rule.betas[1], tau, ahead),
            k=begin.k + tau + ahead,
            product=begin.product * rule.product(begin.k, tau + ahead),
        )

    def _apply(self, part: Part) -> None:
        arrives = part.travelling is not None
        super()._apply(part)
        for name in part.names if arrives else ():
            moved = self._update[name] + self._ahead[name]
            if self.timing.merge != "progress":
                for worker in self.workers:
                    worker.position[name] = self.timing.merge * (worker.position[name] - moved)
            if name in self._arriving:
                self._begin[name] = self._arriving.pop(name)
                for worker in self.workers:
                    worker.begin_from(name, self._begin[name], self._rules[name])


@dataclass(frozen=True, kw_only=True)
class LateCase(AdamCase):
    """A run of BMUF-Adam in fragments, with or without overlap.

    Attributes:
        twin_kind: class of the twin.
        outer: outer step of the models, if it is not block momentum with a constant eta.

    """

    twin_kind: Any = LateAdamTwin
    outer: Any = None

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """The twin of the case."""
        strategy: Any = self.strategy()
        sync, [own] = strategy.block_sync, names
        rules = Rules(of={name: self._rule(name) for name in own})
        twin = self.twin_kind(net, replace(self.recipe, tau=None, overlap=False), rules)
        delay = sync.delay(sync.steps)
        timing = Timing(tau=sync.steps, n=sync.fragments, delay=delay, merge=sync.merge)
        plain: Any = partial(block_momentum, eta=self.recipe.eta, zeta=1.0)
        twin.begin(timing, self.outer or plain, resets=False)
        result: Twin = twin
        return result


def late_case(name: str, rule: Rule, *, group: int = 1, **settings: Any) -> LateCase:
    """A run of BMUF-Adam with these settings."""
    own = {"block_size": 4, "block_momentum": 0.6, "local_beta1": "keep", "batches": 19}
    more = {"find_unused_parameters": True}
    result: LateCase = case(
        name,
        kind=LateCase,
        sync=BMUFAdam,
        group_size=group,
        rule=rule,
        **{**own, **more, **settings},
    )
    return result
