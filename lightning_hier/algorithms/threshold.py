"""Gradient threshold compression (GTC): automatic control of the threshold."""

from __future__ import annotations

import math

# Lower limit for a tensor whose gradient is zero for thousands of steps, so that corrections can
# raise the threshold again. It is a normal number even in float32.
_SMALLEST_THRESHOLD = 1e-30


def first_threshold(gradient_rms: float, density: float) -> float:
    """Threshold from which the automatic control starts.

    A residual under noise of standard deviation sigma is a random walk: it needs about
    (T / sigma)**2 steps to reach T, so the share of elements sent per step is (sigma / T)**2, and
    T = sigma / sqrt(density).
    """
    return gradient_rms / math.sqrt(density)


def next_threshold(threshold: float, *, sent: int, elements: int, density: float) -> float:
    """Move the threshold of one tensor so that about ``density`` of its elements is sent.

    In the long run the density is proportional to T**-2, so the exact correction has exponent 1/2.
    But a residual moves by sigma in a step, which is a fraction sqrt(density) of T. A change of T
    by this amount immediately affects all residuals near T. The exponent is therefore multiplied by
    sqrt(density). Otherwise T would oscillate between sending nothing and sending many times the
    density. One is added to both counts so that a tensor that sends nothing has a ratio above 0.

    Args:
        threshold: T of this step.
        sent: elements sent in this step, over all workers of the group.
        elements: elements that could have been sent, over all workers of the group.
        density: wanted share of the elements.

    """
    ratio = (sent + 1) / (elements * density + 1)
    return max(threshold * float(ratio ** (0.5 * math.sqrt(density))), _SMALLEST_THRESHOLD)
