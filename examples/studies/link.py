"""Bytes that one host sends in a run of the language study, and the duration of the transfers.

Each host has one worker. With N hosts, the bytes per parameter of the model are::

    gradients, every step of the warm-up and of synchronous training:  2 (N - 1) / N * 4
    dense updates, each synchronisation:                               2 (N - 1) / N * b
    sparse updates, each synchronisation:                              (N - 1) * density * (2 + b)
    moments, each exchange:                                            2 (N - 1) / N * 2 * c

with b = 4 in float32, 1 + 4/512 in int8 and 1/2 + 4/128 in int4. c is 4, or 2 if updates are
quantised or sparse. Two bytes of a sparse element are its position.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.studies.language_settings import Settings

_VALUE_BYTES = {"same": 4.0, "int8": 1.0 + 4.0 / 512, "int4": 0.5 + 4.0 / 128}
_POSITION_BYTES = 2.0


@dataclass(frozen=True)
class Link:
    """A network link, and the model that is trained over it.

    The time of a run is the time of its steps and of the exposed part of the transfers. The
    transfer of a gradient overlaps with half a step, the backward pass. An update that is sent d
    steps before it is applied, in n fragments, overlaps with min(n d, H) steps of a block of H
    steps. Quantisation, selection and latency take no time in this model.

    Attributes:
        gigabits: gigabits per second in each direction.
        parameters: number of parameters of the model.
        step_s: duration of a step.

    """

    gigabits: float
    parameters: float = 25e6
    step_s: float = 0.15

    @property
    def title(self) -> str:
        """The data rate as text."""
        return (
            f"{self.gigabits:g} Gbit/s" if self.gigabits >= 1 else f"{self.gigabits * 1e3:g} Mbit/s"
        )

    def hours(self, run: Settings, step: int) -> float:
        """Return the time of a run until a step."""
        synchronous_steps = min(step, _synchronous_steps(run))
        seconds = step * self.step_s
        seconds += synchronous_steps * self._exposed_s(gradient_bytes(run), 0.5)
        overlapping_steps = min(run.fragments * run.overlap, run.block_size)
        seconds += run.synchronised(step) * self._exposed_s(block_bytes(run), overlapping_steps)
        return seconds / 3600.0

    def _exposed_s(self, bytes_per_parameter: float, steps: float) -> float:
        """Return the part of the duration of a transfer that does not overlap with ``steps``."""
        transfer_s = 8.0 * bytes_per_parameter * self.parameters / (self.gigabits * 1e9)
        return max(0.0, transfer_s - steps * self.step_s)


def run_bytes(run: Settings, step: int) -> float:
    """Return the bytes per parameter that a host has sent until a step."""
    synchronous_steps = min(step, _synchronous_steps(run))
    return synchronous_steps * gradient_bytes(run) + run.synchronised(step) * block_bytes(run)


def gradient_bytes(run: Settings) -> float:
    """Return the bytes per parameter of an exact gradient."""
    return _all_reduce_factor(run) * _VALUE_BYTES["same"]


def block_bytes(run: Settings) -> float:
    """Return the bytes per parameter of a synchronisation, with its share of the moments."""
    value_bytes = _VALUE_BYTES[run.across_dtype]
    compressed = run.across_dtype != "same" or run.across_density < 1.0
    if run.across_density < 1.0:
        sent = (run.models - 1) * run.across_density * (_POSITION_BYTES + value_bytes)
    else:
        sent = _all_reduce_factor(run) * value_bytes
    if run.exchanges_moments:
        moment_bytes = 2.0 * (2.0 if compressed else 4.0)
        sent += _all_reduce_factor(run) * moment_bytes / run.moments_every
    return sent


def _all_reduce_factor(run: Settings) -> float:
    """Return the data that a host sends in a ring all-reduce, relative to the tensor."""
    return 2.0 * (run.workers - 1) / run.workers


def _synchronous_steps(run: Settings) -> int:
    return run.warmup_steps if run.averages else run.steps
