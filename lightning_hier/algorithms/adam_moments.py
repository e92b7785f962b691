"""BMUF-Adam: extrapolation of Adam's moments and step count to the look-ahead."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# 0.96 in NAdam's momentum schedule (Dozat 2016; constant in torch.optim.NAdam).
_NADAM_BASE = 0.96


def advance_moment_(
    mean: Tensor, previous: Tensor, *, beta: float, local: float, ahead: float, square: bool
) -> None:
    """Turn the mean of the workers' moments into the moment for the next start model, in place.

    The workers' mean belongs to the mean of the models, and the next block starts ``ahead`` steps
    later. If the gradient is stationary, these steps change the moment like the steps of this block
    (bmuf_adam eq. 16 and 17)::

        g      = (mean - beta^tau * previous) / (1 - beta^tau)
        m_init = beta^ahead * mean + (1 - beta^ahead) * g

    This is eq. 18 in a form without differences of large terms, in which ``ahead = 0`` leaves the
    mean unchanged. (Algorithm 1 of the paper has beta2 in one denominator of m_init. Eq. 18 is
    correct.)

    Args:
        mean: mean of the moment over the workers, flat. Overwritten.
        previous: moment at the start of the block, the same for all workers, same shape.
        beta: decay rate of this moment.
        local: tau, steps of the workers in the block. It is the mean over the workers and may be a
            fraction if a parameter was not part of all steps. If it is 0, the gradient is unknown
            and the moment is not changed.
        ahead: eta * rho_n, number of steps to which the look-ahead eta * Delta_n corresponds.
        square: whether it is the second moment, which is at least 0. In exact arithmetic, the
            result is at least beta^(tau + ahead) times the previous one. Rounding may make a very
            small one negative, and its square root would be NaN.

    """
    if ahead != 0.0 and local != 0.0:
        # An estimate: the gradient with which this block would have moved `previous` to `mean`.
        kept = beta**local
        gradient = previous.mul(-kept).add_(mean).div_(1.0 - kept)
        mean.lerp_(gradient, 1.0 - beta**ahead)
    if square:
        _clamp_(mean)


def merge_moment_(
    moment: Tensor, sent: Tensor, start: Tensor, *, beta: float, steps: float, square: bool
) -> None:
    """Replace the past of a moment by the past of the start model, some steps later, in place.

    A moment is linear in its past: ``steps`` after a value ``sent`` it is ``beta^steps * sent``
    plus the contributions of its own gradients. With these, an optimizer that started from
    ``start`` would have::

        moment = beta^steps * start + (moment - beta^steps * sent)

    Args:
        moment: current moment of a worker, flat. Overwritten.
        sent: the moment before the steps, same shape.
        start: moment of the start model, same shape.
        beta: decay rate of this moment.
        steps: steps of this worker since ``sent``.
        square: whether it is the second moment, whose own contributions are at least 0.

    """
    kept = beta**steps
    moment.sub_(sent, alpha=kept)
    if square:  # before the start is added, so that the result is at least beta^steps * start
        _clamp_(moment)
    moment.add_(start, alpha=kept)


def _clamp_(square: Tensor) -> None:
    """Set negative values to 0, in place."""
    # torch.optim keeps the squares of real and imaginary part as one complex number.
    real = torch.view_as_real(square) if square.is_complex() else square
    real.clamp_(min=0.0)


def nadam_product(step: float, steps: float, *, beta1: float, momentum_decay: float) -> float:
    """Factor by which NAdam's ``mu_product`` changes over the steps after ``step``.

    NAdam weights momentum by ``mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2)`` and corrects
    its bias by the product of all mu so far. The look-ahead corresponds to steps, so the product
    includes their mu. A last fractional step contributes its mu to the power of the fraction.

    Args:
        step: Adam's step count before these steps, possibly a fraction.
        steps: number of steps, possibly a fraction.
        beta1: decay rate of the first moment.
        momentum_decay: psi of NAdam.

    """
    whole = math.floor(steps)
    # The last one is the fractional step. Its power is 0 if there is none.
    counts = step + torch.arange(1, whole + 2, dtype=torch.float64)
    mu = beta1 * (1.0 - 0.5 * _NADAM_BASE ** (counts * momentum_decay))
    return float(mu[:-1].prod() * mu[-1] ** (steps - whole))
