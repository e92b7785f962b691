"""Two-stage ASGD on a rank: device, node (first rank of a group), and master (rank 0)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.open_ports import AllGather, Ports
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server import Servers, WaitingRanks
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.shards import plan_shards
from lightning_hier.parameter_server.two_stage.device import Device
from lightning_hier.parameter_server.two_stage.master import Master
from lightning_hier.parameter_server.two_stage.node import MASTER, Exchange, Node
from lightning_hier.parameter_server.two_stage.replica import open_replicas
from lightning_hier.parameter_server.updater import hyperparameters


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

    Attributes:
        masters: the master of each optimizer, on rank 0 only.

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
        # One server, the master, for all parameters of an optimizer. At least float32, because sums
        # and many small updates lose too much in half precision.
        shards = plan_shards(optimizers, 1, least_dtype=torch.float32)
        first = rank - rank % group_size
        ranks = range(first, first + group_size)
        self._replicas = open_replicas(shards, group_size=group_size, rank=rank, exchange=exchange)
        of_optimizers = list(zip(optimizers, self._replicas, remaining, strict=True))
        self._node: Node | None = None
        if rank == first:
            # A port of its own, because the node exchanges while the main thread computes.
            own = channel.on_port(ports.clients["node"])
            exchanges = [
                Exchange(index, own, replica, each, hyperparameters(optimizer))
                for index, (optimizer, replica, each) in enumerate(of_optimizers)
            ]
            self._node = Node(own, exchanges)
        waiting_ranks = WaitingRanks()
        firsts = range(0, world_size, group_size)
        self.masters = [
            Master(
                shard,
                optimizer,
                {node: range(node, node + group_size) for node in firsts},
                settings=settings,
                waiting_ranks=waiting_ranks,
                replies=ports.server,
            )
            for shard, optimizer in zip(shards, optimizers, strict=True)
            if rank == MASTER
        ]
        servers = Servers(dict(enumerate(self.masters)), ports.server, waiting_ranks)
        super().__init__(shards, servers, channel)
        # The master skips a node while all its ranks wait. Without order locking, or with double
        # buffering, no rank waits for another node's turn, so the order is kept.
        self.must_know_of_waits = settings.order_locking and not settings.double_buffering
        self.workers = [
            Device(
                rank - first,
                ranks,
                channel,
                replica,
                optimizer,
                each,
                None if self._node is None else self._node.exchanges[index],
            )
            for index, (optimizer, replica, each) in enumerate(of_optimizers)
        ]
        if self._node is not None:
            self._node.start()

    @override
    def metrics(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for index, device in enumerate(self.workers):
            prefix = f"hier/two_stage/{index}" if len(self.workers) > 1 else "hier/two_stage"
            roles = {"device": asdict(device.counts)}
            if self._node is not None:
                roles["node"] = asdict(self._node.exchanges[index].counts)
            if self.masters:
                roles["master"] = asdict(self.masters[index].counts)
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
