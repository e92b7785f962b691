"""What a strategy drives on each rank, whatever its servers do with the gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.server_loop import Handler


@dataclass(frozen=True)
class Snapshot:
    """The servers' state, copied while training goes on.

    Attributes:
        values: of the parameters, on the host.
        optimizer_states: for each optimizer the ``state`` of its ``state_dict()``.

    """

    values: Mapping[Parameter, Tensor]
    optimizer_states: Sequence[Mapping[int, Any]]


class Engine(Protocol):
    """A worker and what its rank serves. Called in the rank's main thread."""

    @property
    def handlers(self) -> Sequence[Handler]:
        """What the rank's server_loop has to do."""

    @property
    def behind(self) -> int:
        """How many steps this worker may leave out to be where the others are."""

    def step(self, optimizer: int) -> None:
        """End a step: the gradients lie in ``.grad``; new values go into the parameters, in place.

        Raises:
            PeerError: a rank that can't be done without is missing.

        """

    def abstain(self, optimizer: int) -> None:
        """End a step without a gradient, of a worker that has none or none that is finite."""

    def skip(self, optimizer: int) -> None:
        """Leave out a step that the others have made already."""

    def rendezvous(self) -> None:
        """Put the global model into the module. Every rank that is there must call it."""

    def wait_in_collective(self, number: int) -> None:
        """Tell servers that this rank makes no step until a meeting is over; at times again."""

    def leave_collective(self, number: int) -> None:
        """Know that a meeting is over, to which all have come."""

    def snapshot(self) -> Snapshot:
        """State of all servers. Any rank may call it; the others go on."""

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Take over the state of an optimizer, before training starts."""

    def metrics(self) -> dict[str, float]:
        """What is counted, by name."""

    def close(self) -> None:
        """Let go of what the engine holds outside of this process."""
