"""BMUF-Adam: Adam's moments and step count for a model that block momentum has moved on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# 0.96 in NAdam's momentum schedule (Dozat 2016; constant in torch.optim.NAdam).
_NADAM_BASE = 0.96


@dataclass(frozen=True)
class BlockSteps:
    """How many mini-batches one block and the look-ahead after it stand for.

    Attributes:
        local: tau, steps that the workers took in the block. A mean over the workers, and so
            perhaps a fraction, where a parameter did not take part in all of them.
        ahead: eta * rho_n, the steps that the look-ahead eta * Delta_n stands for.

    """

    local: float
    ahead: float


def next_rho(rho: float, steps: float, eta: float) -> float:
    """Mini-batches that the global update Delta_n stands for (bmuf_adam 2.1).

    ``rho_n = eta * rho_{n-1} + tau``, with rho_0 = 0; it tends to N * tau for eta = 1 - 1 / N.
    """
    return eta * rho + steps


def advance_moment_(mean: Tensor, previous: Tensor, *, beta: float, steps: BlockSteps) -> None:
    """Turn the mean of the workers' moments into the moment for the next start model, in place.

    The workers' mean belongs to the mean of the models, and the next block starts ``ahead`` steps
    further on. If the gradient is stationary, it adds to the moment what it added per step in this
    block (bmuf_adam eq. 16 and 17)::

        g      = (mean - beta^tau * previous) / (1 - beta^tau)
        m_init = beta^ahead * mean + (1 - beta^ahead) * g

    which is eq. 18 in a form in which no difference of large terms arises and ``ahead = 0`` leaves
    the mean as it is. (Printed Algorithm 1 has beta2 in one denominator of m_init; eq. 18 is
    right.)

    Args:
        mean: mean of the moment over the workers, flat; overwritten.
        previous: the moment from which all workers started the block, same shape.
        beta: decay rate of this moment.
        steps: of this block. Where ``local`` is 0 nothing is known of the gradient, and the moment
            stays.

    """
    if steps.ahead == 0.0 or steps.local == 0.0:
        return
    kept = beta**steps.local
    gradient = previous.mul(-kept).add_(mean).div_(1.0 - kept)
    mean.lerp_(gradient, 1.0 - beta**steps.ahead)


def advance_square_(mean: Tensor, previous: Tensor, *, beta: float, steps: BlockSteps) -> None:
    """:func:`advance_moment_` for the moment of the squares, which stays at 0 or above.

    In exact arithmetic it always does: it is at least beta^(tau + ahead) times the previous one.
    Rounding may bring a square that has all but vanished below 0, and its root would be NaN.
    """
    advance_moment_(mean, previous, beta=beta, steps=steps)
    real = torch.view_as_real(mean) if mean.is_complex() else mean
    real.clamp_(min=0.0)


def nadam_product(step: float, steps: float, *, beta1: float, momentum_decay: float) -> float:
    """Factor by which NAdam's ``mu_product`` changes over the steps after ``step``.

    NAdam weights momentum by ``mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2)`` and corrects
    its bias by the product of all mu so far. The look-ahead stands for steps too, so their mu
    belong to the product: those of whole steps, and of the last one a power as large as the
    fraction of it.

    Args:
        step: Adam's step count before them, perhaps a fraction.
        steps: number of steps, perhaps a fraction.
        beta1: decay rate of the first moment.
        momentum_decay: psi of NAdam.

    """
    whole = math.floor(steps)
    counts = step + torch.arange(1, whole + 2, dtype=torch.float64)
    mu = beta1 * (1.0 - 0.5 * _NADAM_BASE ** (counts * momentum_decay))
    return float(mu[:-1].prod() * mu[-1] ** (steps - whole))
