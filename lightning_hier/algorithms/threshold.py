"""Gradient threshold compression (GTC): automatic control of the threshold."""

from __future__ import annotations

import math

# A tensor whose gradient is zero for thousands of steps lowers its threshold no further, so that
# a correction can raise it again. A normal number even in float32.
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

    In the long run the density goes as T**-2, so the exact correction has exponent 1/2. But a
    change of T by the step sigma of a residual, a share sqrt(density) of T, releases or holds back
    at once all residuals near T: the exponent is smaller by that factor, or T would swing between
    sending nothing and sending many times the density. One more element on both sides keeps the
    logarithm finite for tensors that send nothing.

    Args:
        threshold: T of this step.
        sent: elements sent in this step, over all workers of the group.
        elements: elements that could have been sent, over all workers of the group.
        density: the share that should be.

    """
    ratio = (sent + 1) / (elements * density + 1)
    return max(threshold * float(ratio ** (0.5 * math.sqrt(density))), _SMALLEST_THRESHOLD)
