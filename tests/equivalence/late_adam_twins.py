"""Float64 twin of BMUF-Adam with overlap: moments of a fragment that arrive when it does.

Where they arrive, every worker starts again from the moments at the start model, and all gradients
since the send are put into them once more. The package computes the same by linearity.
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
    """Remembers its gradients since the send, and how many steps it is away from its start."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.since: dict[str, list[Tensor]] = {name: [] for name in self.memory}
        self.position = dict.fromkeys(self.memory, 0.0)

    def descend(self, name: str, gradient: Tensor, rules: Rules) -> None:  # type: ignore[override]
        """One step, by the box of the optimizer."""
        rule = rules.of[name]
        decays = rule.kind != "adamw"
        decay = rule.weight_decay * self.values()[name] if decays else 0.0
        self.since[name].append(gradient + decay)
        self.position[name] += 1.0
        super().descend(name, gradient, rules)

    def begin_from(self, name: str, start: Memory, rule: Rule) -> None:
        """Take another start of the block, and the gradients since the send once more."""
        own = start.copied()
        beta1, beta2 = rule.betas
        for gradient in self.since[name]:
            own.k, own.tau = own.k + 1, own.tau + 1
            own.m = beta1 * own.m + (1 - beta1) * gradient
            own.v = beta2 * own.v + (1 - beta2) * gradient**2
            own.product *= rule.mu(own.k) if rule.kind == "nadam" else 1.0
        self.memory[name] = own


class LateAdamTwin(FragmentTwin):
    """Fragments with the moments of one optimizer, whose block momentum is Nesterov's, zeta = 1."""

    workers: list[LateAdamWorker]  # type: ignore[assignment]

    def __init__(self, model: nn.Module, recipe: AdamRecipe, rules: Rules) -> None:
        super().__init__(model, recipe, [rules])  # type: ignore[list-item]
        self.workers = [LateAdamWorker(deepcopy(model).double()) for _ in range(recipe.world)]
        self._rules, self._symbols = rules.of, recipe
        self._begin = {name: one.copied() for name, one in self.workers[0].memory.items()}
        self._rho = dict.fromkeys(self._begin, 0.0)
        self._update = dict.fromkeys(self._begin, 0.0)
        self._arriving: dict[str, Memory] = {}
        self._sends = dict.fromkeys(self._begin, 0)

    @property
    def _new_start(self) -> float:
        """Weight of the start model where it is merged."""
        return 1.0 if self.timing.merge == "progress" else 1.0 - self.timing.merge

    def _send(self, part: Part) -> None:
        well = [self._finite(part, number) for number in range(len(self.workers))]
        leaders = list(zip(self.workers, well, strict=True))[:: self.recipe.group]
        healthy = [worker for worker, is_well in leaders if is_well]
        for name in part.names:
            self._sends[name] += 1
            self._count(name, healthy)
            if self._sends[name] % self._symbols.every == 0:
                self._arriving[name] = self._next(name, healthy)
            for worker in self.workers:
                worker.since[name] = []
                if self.timing.merge == "progress":
                    worker.position[name] = 0.0
        super()._send(part)
        for worker, is_well in zip(self.workers, well, strict=True):
            for name, begin in self._begin.items() if not is_well else ():
                worker.memory[name], worker.since[name] = begin.copied(), []
                worker.position[name] = 0.0

    def _count(self, name: str, healthy: Sequence[LateAdamWorker]) -> None:
        """Rho is the number of steps in Delta: an update counts by how far it goes."""
        self._update[name] = sum(worker.position[name] for worker in healthy) / len(healthy)
        self._rho[name] = self.recipe.eta * self._rho[name] + self._update[name]

    def _next(self, name: str, healthy: Sequence[LateAdamWorker]) -> Memory:
        """The moments at the start model, as if all workers had it at the send."""
        ends = [worker.memory[name] for worker in healthy]
        begin, rule = self._begin[name], self._rules[name]
        tau = sum(end.tau for end in ends) / len(ends)
        if tau == 0:
            return begin
        ahead = (
            self._new_start * self.recipe.eta * self._rho[name] if self._symbols.corrected else 0.0
        )
        m, v = (
            eq_18(
                torch.stack([getattr(end, kind) for end in ends]).mean(0), first, beta, tau, ahead
            )
            for kind, first, beta in zip("mv", (begin.m, begin.v), rule.betas, strict=True)
        )
        product = begin.product * rule.product(begin.k, tau + ahead)
        return Memory(m, v, k=begin.k + tau + ahead, product=product)

    def _apply(self, part: Part) -> None:
        arrives = part.travelling is not None
        super()._apply(part)
        for name in part.names if arrives else ():
            moved = self._update[name] + self.recipe.eta * self._rho[name]
            if self.timing.merge != "progress":
                for worker in self.workers:
                    worker.position[name] = self.timing.merge * (worker.position[name] - moved)
            if name in self._arriving:
                self._begin[name] = self._arriving.pop(name)
                for worker in self.workers:
                    worker.begin_from(name, self._begin[name], self._rules[name])


@dataclass(frozen=True, kw_only=True)
class LateCase(AdamCase):
    """A run with overlap."""

    def twin(self, net: nn.Module, names: Sequence[tuple[str, ...]]) -> Twin:
        """Its twin."""
        strategy: Any = self.strategy()
        sync, [own] = strategy.block_sync, names
        rules = Rules(of={name: self._rule(name) for name in own})
        twin = LateAdamTwin(net, replace(self.recipe, tau=None, overlap=False), rules)
        delay = sync.delay(sync.steps)
        timing = Timing(tau=sync.steps, n=sync.fragments, delay=delay, merge=sync.merge)
        outer: Any = partial(block_momentum, eta=self.recipe.eta, zeta=1.0)
        twin.begin(timing, outer, resets=False)
        twin.faults = {fault.batch: fault.rank for fault in self.faults}
        return twin


def late_case(name: str, rule: Rule, *, group: int = 1, **settings: Any) -> LateCase:
    """Of BMUF-Adam with these settings."""
    own = {"block_size": 4, "block_momentum": 0.6, "local_beta1": "keep", "batches": 19}
    more = {"on_nonfinite": "exclude", "find_unused_parameters": True}
    made: LateCase = case(
        name,
        kind=LateCase,
        sync=BMUFAdam,
        group_size=group,
        rule=rule,
        **{**own, **more, **settings},
    )
    return made
