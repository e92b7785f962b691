"""Push period and speed of two-stage ASGD by its sizing equations (eq. 6 and 7)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster and a model, described by the inputs of the sizing equations of two-stage ASGD.

    P / T_f in the paper (number of parameters divided by the FLOPS of a device) is the time of a
    device for one sample. Here it is a measured value.

    Attributes:
        nodes: N_e, nodes that exchange with the master.
        devices: G_n, devices of each node.
        model_bytes: M, bytes of one push or one pull.
        bandwidth: B, measured bytes per second of the master's network.
        batch_samples: N_c, samples in a mini-batch.
        device_speed: T_f / P, samples per second of one device alone.

    Raises:
        ValueError: a value is not positive.

    """

    nodes: int
    devices: int
    model_bytes: float
    bandwidth: float
    batch_samples: int
    device_speed: float

    def __post_init__(self) -> None:
        """Check that all values are positive."""
        for name, value in vars(self).items():
            # Not `value <= 0`, which is False for NaN.
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def transmission_seconds(self) -> float:
        """T_trans = 2 N_e M / B: all nodes push and pull once (eq. 6)."""
        return 2 * self.nodes * self.model_bytes / self.bandwidth

    def computation_seconds(self, push_period: int) -> float:
        """T_calc = (P / T_f) (N_c N / G_n): a node computes N mini-batches (eq. 7)."""
        samples = self.batch_samples * _positive(push_period)
        return samples / (self.devices * self.device_speed)

    def period_seconds(self, push_period: int, *, double_buffering: bool = True) -> float:
        """Seconds from one push of a node to the next.

        The maximum of both times if devices compute during transmission, otherwise their sum.
        """
        both = self.computation_seconds(push_period), self.transmission_seconds()
        return max(both) if double_buffering else sum(both)

    def samples_per_second(self, push_period: int, *, double_buffering: bool = True) -> float:
        """Samples per second of all nodes together."""
        samples = self.nodes * self.batch_samples * push_period
        return samples / self.period_seconds(push_period, double_buffering=double_buffering)

    def best_push_period(self) -> int:
        """Smallest N with T_calc >= T_trans, for which double buffering hides the transmission.

        At the best N of the paper, the two are equal. With a larger N, training is not faster and
        the master receives fewer updates.
        """
        transmission = self.transmission_seconds()
        quotient = math.floor(transmission / self.computation_seconds(1))
        # Rounding may move the quotient to either side of an integer, so start one below it.
        periods = itertools.count(max(1, quotient - 1))
        return next(n for n in periods if self.computation_seconds(n) >= transmission)


def _positive(push_period: int) -> int:
    if push_period < 1:
        raise ValueError(f"push_period must be at least 1, got {push_period}")
    return push_period
