"""Two-stage ASGD on a rank: device, node (first rank of a group), and master (rank 0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.parameter_server.engine import Engine, Snapshot
from lightning_hier.parameter_server.open_ports import AllGather, Ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.two_stage.device import Device
from lightning_hier.parameter_server.two_stage.master import Master, master_model
from lightning_hier.parameter_server.two_stage.node import MASTER, Exchange, Node
from lightning_hier.parameter_server.two_stage.replica import open_replicas, shaped
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.updater import hyperparameters, trainable


class TwoStageASGD(Engine):
    """The engine of two-stage ASGD.

    The constructor is a collective of the world. The models must be equal on all ranks. Their
    current values are the first ones of the master.

    Args:
        optimizers: optimizers of the user. Their hyperparameters are read, and they are copied for
            the replica and for the master. Parameters that do not require gradients are left out.
        rank: this rank.
        world_size: number of ranks, a multiple of ``group_size``.
        group_size: devices of a node: consecutive ranks, on one host.
        exchange: all-gather over the world, of values that JSON can represent.
        ports: ports of this rank.
        channel: channel of the main thread.
        settings: settings of the run.
        steps_made: steps of each optimizer before this run, if it resumes another one.

    Raises:
        RuntimeError: on every rank, if the ranks of a group cannot share memory.

    """

    workers: list[Device]

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
        remaining = settings.of_optimizers(len(optimizers), steps_made)
        self._parameters = [trainable(optimizer) for optimizer in optimizers]
        self._optimizers = list(optimizers)
        first = rank - rank % group_size
        self._ranks = range(first, first + group_size)
        self._replicas = open_replicas(
            self._parameters, group_size=group_size, rank=rank, exchange=exchange
        )
        self._node: Node | None = None
        if rank == first:
            # A port of its own, because the node exchanges while the main thread computes.
            node_channel = channel.on_port(ports.clients["node"])
            self._node = self._make_node(node_channel, remaining)
        self._master: Master | None = None
        if rank == MASTER:
            models = list(map(master_model, optimizers, self._parameters))
            firsts = range(0, world_size, group_size)
            nodes = {first: range(first, first + group_size) for first in firsts}
            self._master = Master(models, nodes, ports.server, settings)
        self.handlers = [] if self._master is None else [self._master]
        # The master skips a node while all its ranks wait. Without order locking, or with double
        # buffering, no rank waits for another node's turn, so the order is kept.
        may_wait = settings.order_locking and not settings.double_buffering
        self.must_know_of_waits = may_wait
        self.workers = [
            Device(
                rank - first,
                self._ranks,
                channel,
                self._replicas[index],
                optimizer,
                self._parameters[index],
                remaining[index],
                None if self._node is None else self._node.exchanges[index],
            )
            for index, optimizer in enumerate(optimizers)
        ]
        if self._node is not None:
            self._node.start()

    @override
    def snapshot(self) -> Snapshot:
        # Only on rank 0, without unpushed gradients and without the state of the devices.
        if self._master is None:
            raise RuntimeError(
                f"a snapshot must be taken on rank {MASTER}, which holds the master's model"
            )
        values: dict[Parameter, Tensor] = {}
        states = []
        for model, parameters in zip(self._master.models, self._parameters, strict=True):
            flat, state = model.snapshot()
            for parameter, value in zip(parameters, shaped(flat, parameters), strict=True):
                values[parameter] = value.to(parameter.dtype, copy=True)
            states.append(state)
        return Snapshot(values, states)

    @override
    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        if self._master is not None:
            self._master.models[optimizer].load(dict(state))

    @override
    def metrics(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for index, device in enumerate(self.workers):
            prefix = f"hier/two_stage/{index}" if len(self.workers) > 1 else "hier/two_stage"
            roles = {"device": asdict(device.counts)}
            if self._node is not None:
                roles["node"] = asdict(self._node.exchanges[index].counts)
            if self._master is not None:
                roles["master"] = asdict(self._master.parts[index].counts)
            for role, counts in roles.items():
                values |= {f"{prefix}/{role}/{name}": float(n) for name, n in counts.items()}
        return values

    @override
    def close(self) -> None:
        # In this order, because the thread of the node uses the replicas until it ends.
        try:
            if self._node is not None:
                self._node.stop()
        finally:
            for replica in self._replicas:
                replica.close()

    def _make_node(self, channel: RequestChannel, settings: Sequence[TwoStageSettings]) -> Node:
        exchanges = [
            Exchange(
                index,
                channel,
                self._replicas[index],
                settings[index],
                hyperparameters(optimizer),
            )
            for index, optimizer in enumerate(self._optimizers)
        ]
        return Node(channel, exchanges)
