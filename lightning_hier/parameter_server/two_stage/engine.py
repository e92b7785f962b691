"""Two-stage ASGD on one rank: a device; on a group's first rank the node; on rank 0 the master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch.optim import Optimizer

from lightning_hier.parameter_server.engine import Snapshot
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.open_ports import Ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler
from lightning_hier.parameter_server.two_stage.device import Device
from lightning_hier.parameter_server.two_stage.master import Master
from lightning_hier.parameter_server.two_stage.master_model import MasterModel
from lightning_hier.parameter_server.two_stage.node import MASTER, Exchange, Node
from lightning_hier.parameter_server.two_stage.opening import AllGather, open_replicas
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.user_optimizer import (
    ServedParameterCheck,
    hyperparameters,
    trainable,
)


class TwoStageASGD:
    """An engine (see :class:`lightning_hier.parameter_server.engine.Engine`).

    Its construction is a collective of the world. The models must be the same on all ranks; their
    present values are the master's first ones.

    Args:
        optimizers: of the user. Their hyperparameters are read, and they are copied for the replica
            and for the master. Parameters that do not require gradients are left out.
        rank: this rank.
        world_size: number of ranks, a multiple of ``group_size``.
        group_size: devices of a node: consecutive ranks, on one host.
        exchange: all-gather over the world, of values that JSON can represent.
        ports: of this rank.
        channel: of the main thread.
        settings: of the run.
        steps_made: steps of each optimizer before this run, if it resumes another one.

    Raises:
        RuntimeError: on every rank, if the ranks of a group can't share memory.

    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        *,
        rank: int,
        world_size: int,
        group_size: int,
        exchange: AllGather,
        ports: Ports,
        channel: RequestChannel,
        settings: TwoStageSettings,
        steps_made: Sequence[int] = (),
    ) -> None:
        of_each = [settings.after(made) for made in steps_made or [0] * len(optimizers)]
        parts = [trainable(optimizer) for optimizer in optimizers]
        self._served = ServedParameterCheck(optimizers)
        self._optimizers = list(optimizers)
        self._channel = channel
        self._settings = settings
        self._first = rank - rank % group_size
        self._ranks = range(self._first, self._first + group_size)
        self._replicas = open_replicas(parts, group_size=group_size, rank=rank, exchange=exchange)
        self._node = self._make_node(ports, of_each) if rank == self._first else None
        self._master: Master | None = None
        if rank == MASTER:
            models = [MasterModel(*both) for both in zip(optimizers, parts, strict=True)]
            firsts = range(0, world_size, group_size)
            nodes = {first: range(first, first + group_size) for first in firsts}
            self._master = Master(models, nodes, ports.server.send, settings)
        check_node = (lambda: None) if self._node is None else self._node.check
        self._devices = [
            Device(
                rank - self._first,
                self._ranks,
                replica,
                optimizer,
                parameters,
                channel,
                check_node,
                own,
            )
            for replica, optimizer, parameters, own in zip(
                self._replicas, optimizers, parts, of_each, strict=True
            )
        ]
        if self._node is not None:
            self._node.start()

    @property
    def handlers(self) -> Sequence[Handler]:
        """The master, on rank 0."""
        return [] if self._master is None else [self._master]

    @property
    def behind(self) -> int:
        """Always 0: nodes need not be in step, and no step is skipped."""
        return 0

    def step(self, optimizer: int) -> None:
        """Update the replica with the gradients in ``.grad``, sum them, and take new values.

        Raises:
            PeerError: the group's first rank or the master is gone or late.
            RuntimeError: a parameter that was frozen at the start has a gradient.

        """
        self._served.check(optimizer, self._optimizers[optimizer])
        self._publish_hyperparameters(optimizer)
        self._devices[optimizer].step()

    def abstain(self, optimizer: int) -> None:
        """Make a step without a gradient."""
        self._publish_hyperparameters(optimizer)
        self._devices[optimizer].abstain()

    def skip(self, optimizer: int) -> None:
        """Never called, since no device is behind."""

    def rendezvous(self) -> None:
        """Push all sums, wait for all nodes, and take the master's model: the same on all ranks.

        Every live rank must call it, as often as the others.

        Raises:
            PeerError: a node or a device did not arrive in time.

        """
        for device in self._devices:
            device.arrive()
        for device in self._devices:
            device.finish_rendezvous()

    def wait_in_collective(self, number: int) -> None:
        """Notify the master, which skips a node while all its ranks wait.

        Without order locking, and with double buffering, no rank waits for another node's turn.
        Then the order is kept.
        """
        if self._settings.order_locking and not self._settings.double_buffering:
            self._channel.send(MASTER, Message(Kind.WAITING, 0, number))

    def leave_collective(self, number: int) -> None:
        """Send with the node's next push that the collective has ended."""
        for device in self._devices:
            device.leave_collective(number)

    def snapshot(self) -> Snapshot:
        """The master's current models and the state of its optimizers. Rank 0 only.

        It does not include unpushed gradients, nor the state of the devices.

        Raises:
            RuntimeError: on another rank.

        """
        if self._master is None:
            raise RuntimeError(f"rank {MASTER} holds the master's model; ask for it there")
        copies = [model.snapshot() for model in self._master.models]
        values = {own: value for held, _ in copies for own, value in held.items()}
        return Snapshot(values, [state for _, state in copies])

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Load the state of an optimizer on the master, before training."""
        if self._master is not None:
            self._master.models[optimizer].load(state)

    def metrics(self) -> dict[str, float]:
        """Counts of this rank since the start, by metric name."""
        found: dict[str, float] = {}
        for index, device in enumerate(self._devices):
            prefix = f"hier/two_stage/{index}" if len(self._devices) > 1 else "hier/two_stage"
            own = {"device": asdict(device.counts)}
            if self._node is not None:
                own["node"] = asdict(self._node.exchanges[index].counts)
            if self._master is not None:
                own["master"] = asdict(self._master.parts[index].counts)
                own["master"]["version"] = self._master.models[index].version
            for who, counts in own.items():
                found |= {f"{prefix}/{who}/{name}": float(n) for name, n in counts.items()}
        return found

    def close(self) -> None:
        """Stop the node's thread and close the shared memory."""
        try:
            if self._node is not None:
                self._node.stop()
        finally:
            for replica in self._replicas:
                replica.close()

    def _make_node(self, ports: Ports, of_each: Sequence[TwoStageSettings]) -> Node:
        channel = self._channel.on_port(ports.open_client("node"))
        exchanges = [
            Exchange(
                index,
                replica,
                self._ranks,
                channel,
                settings,
                hyperparameters(optimizer),
            )
            for index, (replica, optimizer, settings) in enumerate(
                zip(self._replicas, self._optimizers, of_each, strict=True)
            )
        ]
        return Node(channel, exchanges, self._replicas)

    def _publish_hyperparameters(self, optimizer: int) -> None:
        if self._node is not None:
            own = self._optimizers[optimizer]
            self._node.exchanges[optimizer].hyperparameters = hyperparameters(own)
