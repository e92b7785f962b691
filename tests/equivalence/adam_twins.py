"""Float64 twins of BMUF-Adam.

The optimizers follow the algorithm boxes of their papers, and the moments eq. 18 as printed. Model,
groups and blocks are those of :mod:`tests.equivalence.twins`.
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
    """A recipe with Adam's moments.

    Attributes:
        corrected: whether moments follow eq. 18. Otherwise they are averaged (eq. 13).
        every: number of blocks between two exchanges of moments.

    """

    corrected: bool = True
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Settings of an optimizer for one parameter, in the symbols of the papers.

    Only NAdam uses ``psi``.
    """

    kind: Kind = "adam"
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    psi: float = 4e-3

    def mu(self, t: float) -> float:
        """NAdam's momentum weight at step t."""
        return self.betas[0] * (1 - 0.5 * 0.96 ** (t * self.psi))

    def product(self, k: float, steps: float) -> float:
        """Product of NAdam's mu over ``steps`` steps after step k.

        A fraction of a step contributes its mu to the power of this fraction.
        """
        if self.kind != "nadam":
            return 1.0
        result = 1.0
        for i in range(floor(steps)):
            result *= self.mu(k + i + 1)
        return result * self.mu(k + floor(steps) + 1) ** (steps - floor(steps))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """One optimizer: the settings of each of its parameters."""

    of: dict[str, Rule]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(self.of)


@dataclass
class Memory:
    """Adam's state of one parameter: m, v, k and NAdam's product of mu.

    ``tau`` counts the steps since the start of the block.
    """

    m: Tensor
    v: Tensor
    k: float = 0.0
    product: float = 1.0
    tau: int = 0

    def copied(self) -> Memory:
        """A copy with the same values, at the start of a block."""
        return replace(self, m=self.m.clone(), v=self.v.clone(), tau=0)


class AdamWorker(Worker):
    """A worker with an optimizer of the Adam family."""

    def __init__(self, model: Module) -> None:
        super().__init__(model)
        self.memory = {
            name: Memory(torch.zeros_like(value), torch.zeros_like(value))
            for name, value in self.values().items()
        }

    def descend(self, name: str, gradient: Tensor, rules: Rules) -> None:  # type: ignore[override]
        """Apply one step, from the algorithm box of the optimizer."""
        rule, state, theta = rules.of[name], self.memory[name], self.values()[name]
        beta1, beta2 = rule.betas
        if rule.kind == "adamw":
            theta.mul_(1 - rule.lr * rule.weight_decay)
        else:
            gradient = gradient + rule.weight_decay * theta
        state.k, state.tau = state.k + 1, state.tau + 1
        state.m = beta1 * state.m + (1 - beta1) * gradient
        state.v = beta2 * state.v + (1 - beta2) * gradient**2
        m_hat = state.m / (1 - beta1**state.k)
        v_hat = state.v / (1 - beta2**state.k)
        if rule.kind == "nadam":
            mu, next_mu = rule.mu(state.k), rule.mu(state.k + 1)
            state.product *= mu
            m_hat = next_mu * state.m / (1 - state.product * next_mu)
            m_hat = m_hat + (1 - mu) * gradient / (1 - state.product)
        if rule.kind == "radam":
            theta.sub_(rule.lr * _rectified(m_hat, state, rule))
        else:
            theta.sub_(rule.lr * m_hat / (v_hat.sqrt() + rule.eps))


def _rectified(m_hat: Tensor, state: Memory, rule: Rule) -> Tensor:
    beta2 = rule.betas[1]
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * state.k * beta2**state.k / (1 - beta2**state.k)
    if length <= 5:
        return m_hat
    r = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return m_hat * r**0.5 * (1 - beta2**state.k) ** 0.5 / (state.v.sqrt() + rule.eps)


class AdamTwin(Twin):
    """N workers with an Adam each, whose moments are synchronised (bmuf_adam, Algorithm 1)."""

    workers: list[AdamWorker]  # type: ignore[assignment]

    def __init__(self, model: Module, recipe: AdamRecipe, optimizers: Sequence[Rules]) -> None:
        """Start all workers from ``model``, with moments of zero."""
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
        """Update rho by the steps of the block. This does not depend on an exchange of moments."""
        ends = [worker.memory[name].tau for worker in self.leaders]
        tau = self._mean_over(ends)
        self._rho[name] = self.recipe.eta * self._rho[name] + tau - self._counted[name]
        self._counted[name] = tau

    def _next(self, name: str, rule: Rule) -> Memory:
        """State from which all workers start the next block.

        The state of a parameter that no worker has used does not change.
        """
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
