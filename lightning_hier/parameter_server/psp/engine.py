"""PSP-SGD on a rank: a worker for each optimizer, and a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.parameter_server.engine import Engine, Snapshot
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.state import StateCollector
from lightning_hier.parameter_server.psp.worker import PSPWorker
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Replies


class PSPEngine(Engine):
    """Algorithm 1 of psp_sgd.

    Args:
        rank: rank of this process.
        optimizers: optimizers of the user; their parameters have the same values on all ranks.
        channel: channel of the rank's main thread.
        replies: the rank's server port.
        world_size: number of ranks.
        settings: settings of the run.
        steps_made: steps of each optimizer before this run, if it resumes another one.

    """

    workers: list[PSPWorker]

    def __init__(
        self,
        rank: int,
        optimizers: Sequence[Optimizer],
        channel: RequestChannel,
        replies: Replies,
        *,
        world_size: int,
        settings: PSPSettings,
        steps_made: Sequence[int] = (),
    ) -> None:
        self._channel = channel
        remaining = settings.of_optimizers(len(optimizers), steps_made)
        shards = plan_shards(optimizers, world_size)
        self._server = ShardServer(rank, shards, optimizers, remaining, replies)
        self.handlers = [self._server]
        self.must_know_of_waits = True
        self.workers = [
            PSPWorker(
                optimizer,
                [shard for shard in shards if shard.optimizer == index],
                channel,
                remaining[index],
            )
            for index, optimizer in enumerate(optimizers)
        ]
        self._worker_of = {number: worker for worker in self.workers for number in worker.shards}
        self._collector = StateCollector(shards, channel)
        channel.on(Kind.BLOCK, self._handle)
        channel.on(Kind.FINAL, self._handle)
        channel.on(Kind.STATE, self._collector.handle)

    @override
    def snapshot(self) -> Snapshot:
        self._collector.request()
        self._channel.wait(self._collector.is_complete, self._collector.missing)
        return self._collector.snapshot(len(self.workers))

    @override
    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        self._server.load(optimizer, dict(state))

    @override
    def metrics(self) -> dict[str, float]:
        return self._server.counts.metrics() | {
            "hier/psp/late": float(sum(worker.late for worker in self.workers)),
            "hier/psp/unsent": float(self._channel.dropped),
            "hier/psp/waiting_seconds": sum(worker.waiting_s for worker in self.workers),
        }

    def _handle(self, received: Received, now: float) -> None:
        self._worker_of[received.message.block].handle(received, now)
