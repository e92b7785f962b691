"""The interface of a strategy to the worker and the servers of its rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.server_loop import Handler


@dataclass(frozen=True)
class Snapshot:
    """A copy of the servers' state, taken during training.

    Attributes:
        values: values of the parameters, on the host.
        optimizer_states: for each optimizer the ``state`` of its ``state_dict()``.

    """

    values: Mapping[Parameter, Tensor]
    optimizer_states: Sequence[Mapping[int, Any]]


class Engine(ABC):
    """The worker and the servers of a rank. Called in the rank's main thread."""

    @property
    @abstractmethod
    def handlers(self) -> Sequence[Handler]:
        """Handlers for the server loop of the rank."""

    @property
    def behind(self) -> int:
        """Number of steps that this worker may skip to catch up with the others."""
        return 0

    @abstractmethod
    def step(self, optimizer: int) -> None:
        """End a step: send the gradients in ``.grad``, and update the parameters in place.

        Raises:
            PeerError: a required rank is missing.

        """

    @abstractmethod
    def abstain(self, optimizer: int) -> None:
        """End a step without a finite gradient. Raises PeerError like :meth:`step`."""

    def skip(self, optimizer: int) -> None:  # noqa: B027 (for engines with workers behind)
        """Skip a step that other workers have made, if :attr:`behind` is positive."""

    @abstractmethod
    def rendezvous(self) -> None:
        """Write the global model into the parameters, in place. Bit for bit equal on all ranks.

        Every live rank must call it the same number of times.

        Raises:
            PeerError: a rank did not arrive in time.

        """

    @abstractmethod
    def wait_in_collective(self, number: int) -> None:
        """Notify servers that this rank waits in a live-rank collective. Called repeatedly."""

    @abstractmethod
    def leave_collective(self, number: int) -> None:
        """Report with each later push that a live-rank collective has ended."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """State of all servers. Called by the rank that saves it, while the others continue."""

    @abstractmethod
    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Load the state of an optimizer, before training starts."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Counts of this rank, by metric name."""

    def close(self) -> None:  # noqa: B027 (for engines with such resources)
        """Release resources outside of this process."""
