"""The workers and the servers of a rank, as its strategy uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel, unanswered
from lightning_hier.parameter_server.served_values import read_state
from lightning_hier.parameter_server.server import Servers
from lightning_hier.parameter_server.shards import Shard


@dataclass(frozen=True)
class Snapshot:
    """A copy of the servers' state, taken during training.

    Attributes:
        values: values of the parameters, on the host.
        optimizer_states: for each optimizer the ``state`` of its ``state_dict()``.

    """

    values: Mapping[Parameter, Tensor]
    optimizer_states: Sequence[Mapping[int, Any]]


class Worker(ABC):
    """Training of one optimizer's parameters on a rank. Called in the rank's main thread.

    Attributes:
        behind: number of steps that other workers have made and this one has not.

    """

    behind: int = 0

    @abstractmethod
    def step(self) -> None:
        """End a step: send the gradients in ``.grad``, and update the parameters in place.

        Raises:
            PeerError: a required rank is missing.

        """

    @abstractmethod
    def abstain(self) -> None:
        """End a step without a finite gradient. Raises PeerError like :meth:`step`."""

    def skip(self) -> None:  # noqa: B027 (for workers that can be behind)
        """Skip a step that other workers have made, if :attr:`behind` is positive."""

    @abstractmethod
    def arrive(self) -> None:
        """Arrive at a rendezvous. The worker makes no steps until it has ended."""

    @abstractmethod
    def wait_for_global_model(self) -> None:
        """Wait until all workers have arrived and the global model is available.

        Raises:
            PeerError: a rank did not arrive in time.

        """

    @abstractmethod
    def take_global_model(self) -> None:
        """Write the global model into the parameters, in place. The rendezvous ends.

        Raises:
            PeerError: a rank that shares memory with this one did not copy the model in time.

        """


class Engine(ABC):
    """The workers and the servers of a rank. Called in the rank's main thread.

    Args:
        shards: all shards.
        servers: servers of this rank.
        channel: channel of the main thread.

    Attributes:
        workers: worker of each optimizer.
        servers: see above.
        must_know_of_waits: whether servers must not wait for a rank that waits in a collective.

    """

    workers: Sequence[Worker]
    must_know_of_waits: bool

    def __init__(self, shards: Sequence[Shard], servers: Servers, channel: RequestChannel) -> None:
        self.servers = servers
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._channel = channel

    @property
    def behind(self) -> int:
        """Number of steps that this rank may skip to catch up with the others."""
        return max((worker.behind for worker in self.workers), default=0)

    def rendezvous(self) -> None:
        """Write the global model into the parameters, in place. Bit for bit equal on all ranks.

        Every rank must call it the same number of times.

        Raises:
            PeerError: a rank did not arrive in time.

        """
        # All arrive first, so that the rendezvous of all optimizers overlap.
        for worker in self.workers:
            worker.arrive()
        for worker in self.workers:
            worker.wait_for_global_model()
        # After all ranks have arrived, so that a missing one leaves the parameters as they were.
        for worker in self.workers:
            worker.take_global_model()

    def snapshot(self) -> Snapshot:
        """State of all servers. Called by the rank that saves it, while the others continue."""
        # That of the servers of this rank needs no message.
        read = {number: own.values.snapshot() for number, own in self.servers.of_shard.items()}
        awaited = self._shards.keys() - read.keys()

        def receive(received: Received, now: float) -> None:
            number = received.message.block
            read[number] = read_state(received.message, self._shards[number])

        def missing() -> str:
            homes = [self._shards[number].home for number in awaited - read.keys()]
            return unanswered("the states of shards", homes)

        self._channel.on(Kind.STATE, receive)
        for number in awaited:
            self._channel.send(self._shards[number].home, Message(Kind.STATE_REQUEST, number))
        self._channel.wait(lambda now: awaited <= read.keys(), missing)
        values: dict[Parameter, Tensor] = {}
        states: list[dict[int, Any]] = [{} for _ in self.workers]
        for number, shard in self._shards.items():
            flat, state = read[number]
            values.update(zip(shard.parameters, shard.tensors(flat), strict=True))
            states[shard.optimizer].update(state)
        return Snapshot(values, states)

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Load the entry ``state`` of an optimizer's ``state_dict()``, before training starts."""
        for server in self.servers.of_shard.values():
            if server.shard.optimizer == optimizer:
                server.values.load(state)

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """Counts of this rank, by metric name."""

    def close(self) -> None:  # noqa: B027 (for engines with such resources)
        """Release resources outside of this process."""
