"""What a strategy is predicted to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Of one strategy with its settings, on one network.

    Attributes:
        strategy: name by which a Trainer knows it.
        settings: arguments of the strategy that were assumed.
        ranks: that train.
        alone_s: seconds of a step of one rank by itself.
        step_s: seconds from one step to the next, what comes once a block divided among its steps.
        host_bytes: that a host sends to other hosts in a step, likewise.
        memory_bytes: that the fullest rank holds: model, gradients, state of the optimizer and what
            the strategy adds. Activations and the transport's own memory are not in it.
        useful: share of the batches whose gradients count.

    """

    strategy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ranks: int
    alone_s: float
    step_s: float
    host_bytes: float
    memory_bytes: float
    useful: float = 1.0

    @property
    def efficiency(self) -> float:
        """Speed of a rank, as a share of what it trains by itself."""
        return self.useful * self.alone_s / self.step_s

    @property
    def speedup(self) -> float:
        """Speed of all ranks, in that of one by itself."""
        return self.ranks * self.efficiency

    @property
    def visible_s(self) -> float:
        """What everybody else's presence adds to a step."""
        return self.step_s - self.alone_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        derived = {"efficiency": self.efficiency, "speedup": self.speedup}
        return {**asdict(self), "settings": dict(self.settings), **derived}
