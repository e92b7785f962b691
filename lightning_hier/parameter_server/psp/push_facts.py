"""What a worker says along with a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PushFacts:
    """Facts of a PUSH.

    Attributes:
        version: timestamp of the block with which the gradient was computed.
        final: number of the last rendezvous that has ended for the worker.
        collectives_done: number of the last meeting that is over for the worker.
        steps: how many steps the worker has made: by it the most advanced one is known.
        hyperparameters: of the worker's optimizer, for each parameter group.
        absent: positions in the block of the parameters without a gradient.

    """

    version: int
    final: int
    steps: int
    hyperparameters: list[dict[str, Any]] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    collectives_done: int = 0

    def to_facts(self) -> dict[str, Any]:
        """As facts of a message."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> PushFacts:
        """Read the facts of a message.

        Raises:
            ValueError: they are not those of a PUSH.

        """
        try:
            read = cls(**facts)
        except TypeError as error:
            raise ValueError(f"not the facts of a push: {sorted(facts)}") from error
        numbers = [
            read.version,
            read.final,
            read.collectives_done,
            read.steps,
            *_listed(read.absent),
        ]
        if not all(type(number) is int for number in numbers):
            raise ValueError(
                "version, final, collectives_done, steps and absent of a push are whole numbers"
            )
        if not all(isinstance(group, dict) for group in _listed(read.hyperparameters)):
            raise ValueError("hyperparameters of a push are one object for each group")
        return read


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list in the facts of a push, got {value!r}")
    return value
