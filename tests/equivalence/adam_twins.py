"""Float64 twins of BMUF-Adam: Adam from its papers' boxes, moments by eq. 18 as it is printed.

The model itself, its groups and blocks are those of :mod:`tests.equivalence.twins`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import floor
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module

from tests.equivalence.twins import Recipe, Twin, Worker

Kind = Literal["adam", "adamw", "nadam", "radam"]


@dataclass(frozen=True, kw_only=True)
class AdamRecipe(Recipe):
    """`corrected`: moments by eq. 18; False averages them (eq. 13). `every`: blocks between."""

    corrected: bool = True
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer's settings for one parameter, in the boxes' symbols; psi is NAdam's."""

    kind: Kind = "adam"
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    psi: float = 4e-3

    def mu(self, t: float) -> float:
        """NAdam's weight of the momentum at step t."""
        return self.betas[0] * (1 - 0.5 * 0.96 ** (t * self.psi))

    def product(self, k: float, steps: float) -> float:
        """Of NAdam's mu after step k; a part of a step counts as the root of its mu."""
        if self.kind != "nadam":
            return 1.0
        result = 1.0
        for i in range(floor(steps)):
            result *= self.mu(k + i + 1)
        return result * self.mu(k + floor(steps) + 1) ** (steps - floor(steps))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One optimizer: the rule of each of its parameters."""

    of: dict[str, Rule]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return tuple(self.of)


@dataclass
class Memory:
    """Adam's state of one parameter: m, v, k and NAdam's product of mu; tau counts local steps."""

    m: Tensor
    v: Tensor
    k: float = 0.0
    product: float = 1.0
    tau: int = 0

    def copied(self) -> Memory:
        """Another one with the same values, at the start of a block."""
        return replace(self, m=self.m.clone(), v=self.v.clone(), tau=0)


class AdamWorker(Worker):
    """A worker with one of the Adams."""

    def __init__(self, model: Module) -> None:
        super().__init__(model)
        self.memory = {
            name: Memory(torch.zeros_like(value), torch.zeros_like(value))
            for name, value in self.values().items()
        }

    def descend(self, name: str, gradient: Tensor, rules: Rules) -> None:  # type: ignore[override]
        """One step, by the box of the optimizer."""
        rule, own, theta = rules.of[name], self.memory[name], self.values()[name]
        beta1, beta2 = rule.betas
        if rule.kind == "adamw":
            theta.mul_(1 - rule.lr * rule.weight_decay)
        else:
            gradient = gradient + rule.weight_decay * theta
        own.k, own.tau = own.k + 1, own.tau + 1
        own.m = beta1 * own.m + (1 - beta1) * gradient
        own.v = beta2 * own.v + (1 - beta2) * gradient**2
        m_hat = own.m / (1 - beta1**own.k)
        v_hat = own.v / (1 - beta2**own.k)
        if rule.kind == "nadam":
            mu, following = rule.mu(own.k), rule.mu(own.k + 1)
            own.product *= mu
            m_hat = following * own.m / (1 - own.product * following)
            m_hat = m_hat + (1 - mu) * gradient / (1 - own.product)
        if rule.kind == "radam":
            theta.sub_(rule.lr * _rectified(m_hat, own, rule))
        else:
            theta.sub_(rule.lr * m_hat / (v_hat.sqrt() + rule.eps))


def _rectified(m_hat: Tensor, own: Memory, rule: Rule) -> Tensor:
    beta2 = rule.betas[1]
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * own.k * beta2**own.k / (1 - beta2**own.k)
    if length <= 5:
        return m_hat
    r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return m_hat * r**0.5 * (1 - beta2**own.k) ** 0.5 / (own.v.sqrt() + rule.eps)


class AdamTwin(Twin):
    """N workers with an Adam each, whose moments follow the model (bmuf_adam, Algorithm 1)."""

    workers: list[AdamWorker]  # type: ignore[assignment]

    def __init__(self, model: Module, recipe: AdamRecipe, optimizers: Sequence[Rules]) -> None:
        """Start all workers from ``model``, with empty moments."""
        super().__init__(model, recipe, optimizers)
        self.workers = [AdamWorker(deepcopy(model).double()) for _ in range(recipe.world)]
        self._corrected = recipe.corrected
        self._begin = {name: one.copied() for name, one in self.workers[0].memory.items()}
        self._rho = dict.fromkeys(self._begin, 0.0)
        self._counted = dict.fromkeys(self._begin, 0.0)
        self._every, self._ended = recipe.every, [0] * len(optimizers)

    def _open_blocks(self) -> None:
        super()._open_blocks()
        self._begin = {name: one.copied() for name, one in self.workers[0].memory.items()}
        for worker in self.workers:
            worker.memory = {name: one.copied() for name, one in self._begin.items()}

    def _end_block(self, index: int) -> None:
        rules: Rules = self.optimizers[index]  # type: ignore[assignment]
        self._ended[index] += 1
        for name in rules.names:
            self._count(name)
            if self._ended[index] % self._every == 0:
                self._begin[name] = self._next(name, rules.of[name])
                self._counted[name] = 0.0
                for worker in self.workers:
                    worker.memory[name] = self._begin[name].copied()
        super()._end_block(index)

    def _count(self, name: str) -> None:
        """Rho counts the steps of each block, whether moments are exchanged or not."""
        ends = [worker.memory[name].tau for worker in self.leaders]
        tau = self._mean_over(ends)
        self._rho[name] = self.recipe.eta * self._rho[name] + tau - self._counted[name]
        self._counted[name] = tau

    def _next(self, name: str, rule: Rule) -> Memory:
        """What all workers start the next block from; an unused parameter's state stays."""
        ends = [worker.memory[name] for worker in self.leaders]
        begin, eta, rho = self._begin[name], self.recipe.eta, self._rho[name]
        tau = self._mean_over([end.tau for end in ends])
        if tau == 0:
            return begin
        ahead = eta * rho if self._corrected else 0.0
        mean_m = self._mean_over([end.m for end in ends])
        mean_v = self._mean_over([end.v for end in ends])
        if self._corrected:
            mean_m = eq_18(mean_m, begin.m, rule.betas[0], tau, ahead)
            mean_v = eq_18(mean_v, begin.v, rule.betas[1], tau, ahead)
        return Memory(
            mean_m,
            mean_v,
            k=begin.k + tau + ahead,
            product=begin.product * rule.product(begin.k, tau + ahead),
        )


def eq_18(mean: Tensor, begin: Tensor, beta: float, tau: float, eta_rho: float) -> Tensor:
    of_begin = beta**tau * (beta**eta_rho - 1) / (1 - beta**tau)
    of_mean = (1 - beta ** (tau + eta_rho)) / (1 - beta**tau)
    return of_begin * begin + of_mean * mean
