"""The interface of a strategy to the worker and the servers of its rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.server_loop import Handler


@dataclass(frozen=True)
class Snapshot:
    """A copy of the servers' state, taken during training.

    Attributes:
        values: of the parameters, on the host.
        optimizer_states: for each optimizer the ``state`` of its ``state_dict()``.

    """

    values: Mapping[Parameter, Tensor]
    optimizer_states: Sequence[Mapping[int, Any]]


class Engine(Protocol):
    """The worker and the servers of a rank. Called in the rank's main thread."""

    @property
    def handlers(self) -> Sequence[Handler]:
        """Handlers for the server loop of the rank."""

    @property
    def behind(self) -> int:
        """Number of steps that this worker may skip to catch up with the others."""

    def step(self, optimizer: int) -> None:
        """End a step: send the gradients in ``.grad``, and update the parameters in place.

        Raises:
            PeerError: a rank is missing that is needed to go on.

        """

    def abstain(self, optimizer: int) -> None:
        """End a step without a finite gradient."""

    def skip(self, optimizer: int) -> None:
        """Skip a step that other workers have made."""

    def rendezvous(self) -> None:
        """Write the global model into the parameters. Every live rank must call it."""

    def wait_in_collective(self, number: int) -> None:
        """Notify servers that this rank waits in a live-rank collective. Called repeatedly."""

    def leave_collective(self, number: int) -> None:
        """Note that a live-rank collective has ended."""

    def snapshot(self) -> Snapshot:
        """State of all servers. Any rank may call it; the others go on."""

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Load the state of an optimizer, before training starts."""

    def metrics(self) -> dict[str, float]:
        """Counts by metric name."""

    def close(self) -> None:
        """Release resources outside of this process."""
