"""BMUF-Adam: moments and step counts of Adam, AdamW, RAdam and NAdam follow the outer step.

In torch, m is ``exp_avg``, v ``exp_avg_sq`` and k ``step``. NAdam uses the ``mu_product`` as well.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn, optim

from lightning_hier.reference.workers import Method, settings_of

MOMENTS = ("exp_avg", "exp_avg_sq")


def eq_18(mbar: Tensor, m_prev: Tensor, beta: float, tau: float, ahead: float) -> Tensor:
    """The moment of a start model that is ``ahead`` = eta rho_n steps ahead of the mean model.

    mbar is the mean over the workers after tau steps from m_prev. For v, beta is beta2 (bmuf_adam).
    """
    block, look = float(beta**tau), float(beta**ahead)
    return (block * (look - 1) * m_prev + (1 - block * look) * mbar) / (1 - block)


class Moments:
    """The moments of one parameter on all workers (bmuf_adam, algorithm 1)::

        rho_n  = eta rho_{n-1} + tau                   steps in Delta_n
        m_init = eq. 18 of m, v_init of v, k_init = k + tau + eta rho_n
        m <- m + beta1^s (m_init - m(sent)), v likewise, k <- k_init + s, s steps after the send

    With merge=alpha, rho_n = eta rho_{n-1} + the mean of a, the steps by which a worker is ahead of
    W_g, and m_init is (1 - alpha) eta rho_n steps ahead.
    """

    def __init__(
        self, copies: Sequence[nn.Parameter], optimizers: Sequence[optim.Optimizer], method: Method
    ) -> None:
        self.corrected, self.every = method.moments == "corrected", method.moments_every
        self.alpha = None if method.merge == "progress" else method.merge
        self.states = [state_of(o, p) for o, p in zip(optimizers, copies, strict=True)]
        self.settings = settings_of(optimizers[0], copies[0])
        self.begin, self.rho, self.sends = deepcopy(self.states[0]), 0.0, 0
        self.arriving: dict[str, Tensor] | None = None
        self.zero = self.k()  # a = k - zero

    def k(self) -> list[float]:
        """The step count of each worker."""
        return [float(state["step"]) for state in self.states]

    def counts(self, steps: float) -> dict[str, Tensor]:
        """k and the product of mu_t after so many steps from the last start model."""
        k, psi = float(self.begin["step"]), self.settings.get("momentum_decay", 0.0)
        t = [k + i for i in range(1, ceil(steps) + 1)]
        mu = [self.settings["betas"][0] * (1 - 0.5 * 0.96 ** (own * psi)) for own in t]
        if steps % 1 > 0.0:
            mu[-1] **= steps % 1  # a fraction of a step
        product = self.begin["mu_product"] * prod(mu)
        return {"step": self.begin["step"] + steps, "mu_product": product}

    def send(self, p: dict[int, float], eta: float) -> None:
        """Send the moments of some workers, with their weights in the mean."""
        k = self.k()
        self.mean_a = sum(own * (k[i] - self.zero[i]) for i, own in p.items())
        self.rho = eta * self.rho + self.mean_a
        self.ahead = eta * self.rho
        self.zero = k if self.alpha is None else self.zero
        self.sends = (self.sends + 1) % self.every
        if self.sends == 0:
            self.sent, self.arriving = deepcopy(self.states), self.begin
            tau = sum(own * (k[i] - float(self.begin["step"])) for i, own in p.items())
            ahead = (1 - (self.alpha or 0.0)) * self.ahead if self.corrected else 0.0
            if tau > 0.0:  # otherwise, no worker has used the parameter
                self.arriving = self.counts(tau + ahead)
                for name, beta in zip(MOMENTS, self.settings["betas"], strict=True):
                    mbar = torch.stack([own * self.states[i][name] for i, own in p.items()]).sum(0)
                    self.arriving[name] = eq_18(mbar, self.begin[name], beta, tau, ahead)

    def apply(self) -> None:
        """Go on from the moments that arrive with the outer step, if they do."""
        a = [k - zero for k, zero in zip(self.k(), self.zero, strict=True)]
        if self.arriving is not None:
            self.begin, self.arriving = self.arriving, None
            for state, sent in zip(self.states, self.sent, strict=True):
                s = float(state["step"] - sent["step"])
                for name, beta in zip(MOMENTS, self.settings["betas"], strict=True):
                    since = state[name] - beta**s * sent[name]
                    positive = since.clamp(min=0.0) if name == "exp_avg_sq" else since
                    state[name] = positive + beta**s * self.begin[name]
                state.update(self.counts(s))
        if self.alpha is not None:
            a = [self.alpha * (own - self.mean_a - self.ahead) for own in a]
        self.zero = [k - own for k, own in zip(self.k(), a, strict=True)]


def state_of(optimizer: optim.Optimizer, p: nn.Parameter) -> dict[str, Tensor]:
    """The state of a parameter, also before its first step, with counts in float64."""
    state: dict[str, Any] = optimizer.state[p]
    for name in MOMENTS:
        state.setdefault(name, torch.zeros_like(p))
    for name, first in (("step", 0.0), ("mu_product", 1.0)):
        state[name] = torch.as_tensor(state.get(name, first), dtype=torch.float64)
    return state
