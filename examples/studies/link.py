"""Bytes that one host sends in a run of the language study, and the time that they take.

A host has one worker. With N hosts, in bytes per parameter of the model::

    gradients, every step of the warm-up and of synchronous training:  2 (N - 1) / N * 4
    whole updates, each synchronisation:                               2 (N - 1) / N * b
    sparse updates, each synchronisation:                              (N - 1) * density * (2 + b)
    moments, each exchange:                                            2 (N - 1) / N * 2 * c

with b = 4 in float32, 1 + 4/512 in int8 and 1/2 + 4/128 in int4, and c = 4, or 2 where updates are
rounded or sparse. Two bytes of a sparse element are its position.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.language.stacked.settings import Settings

_VALUE_BYTES = {"same": 4.0, "int8": 1.0 + 4.0 / 512, "int4": 0.5 + 4.0 / 128}
_POSITION_BYTES = 2.0


@dataclass(frozen=True)
class Link:
    """A network, and the model that is trained over it.

    The time of a run is that of its steps and of the transfers that are not hidden. A gradient is
    hidden behind half a step, the backward pass. An update that is sent d steps before it is
    applied, in n fragments, is hidden behind min(n d, H) steps of a block of H steps. Time for
    rounding and selecting, and latency, are left out.

    Attributes:
        gigabits: per second, in each direction.
        parameters: of the model.
        step_s: time of a step.

    """

    gigabits: float
    parameters: float = 25e6
    step_s: float = 0.15

    @property
    def title(self) -> str:
        """The rate."""
        return (
            f"{self.gigabits:g} Gbit/s" if self.gigabits >= 1 else f"{self.gigabits * 1e3:g} Mbit/s"
        )

    def hours(self, run: Settings, step: int, synchronised: float) -> float:
        """Time until a step, after so many synchronisations of whole models."""
        exact = min(step, _exact_steps(run))
        seconds = step * self.step_s
        seconds += exact * self._waits(gradient_bytes(run), 0.5)
        hidden = min(run.fragments * run.overlap, run.block_size)
        seconds += synchronised * self._waits(block_bytes(run), hidden)
        return seconds / 3600.0

    def _waits(self, own: float, steps: float) -> float:
        """Time of a transfer, of which so many steps hide a part."""
        return max(0.0, 8.0 * own * self.parameters / (self.gigabits * 1e9) - steps * self.step_s)


def run_bytes(run: Settings, step: int, synchronised: float) -> float:
    """Bytes per parameter that a host has sent until a step."""
    exact = min(step, _exact_steps(run))
    return exact * gradient_bytes(run) + synchronised * block_bytes(run)


def gradient_bytes(run: Settings) -> float:
    """Of an exact gradient."""
    return _reduced(run) * _VALUE_BYTES["same"]


def block_bytes(run: Settings) -> float:
    """Of a synchronisation, with its share of the moments."""
    own = _VALUE_BYTES[run.across_dtype]
    rounds = run.across_dtype != "same" or run.across_density < 1.0
    if run.across_density < 1.0:
        found = (run.models - 1) * run.across_density * (_POSITION_BYTES + own)
    else:
        found = _reduced(run) * own
    if run.moves_moments:
        found += _reduced(run) * 2.0 * (2.0 if rounds else 4.0) / run.moments_every
    return found


def _reduced(run: Settings) -> float:
    """Models that a host sends in a reduce-scatter and an all-gather."""
    return 2.0 * (run.workers - 1) / run.workers


def _exact_steps(run: Settings) -> int:
    return run.warmup_steps if run.averages else run.steps
