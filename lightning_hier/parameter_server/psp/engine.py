"""PSP-SGD on a rank: a worker for each optimizer, and a server."""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.parameter_server.engine import Engine
from lightning_hier.parameter_server.message import Kind
from lightning_hier.parameter_server.ports import Received, ServerPort
from lightning_hier.parameter_server.psp.pushes import ServerCounts
from lightning_hier.parameter_server.psp.server import serve
from lightning_hier.parameter_server.psp.worker import PSPWorker
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import plan_shards


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
    must_know_of_waits = True

    def __init__(
        self,
        rank: int,
        optimizers: Sequence[Optimizer],
        channel: RequestChannel,
        replies: ServerPort,
        *,
        world_size: int,
        settings: PSPSettings,
        steps_made: Sequence[int] = (),
    ) -> None:
        remaining = settings.of_optimizers(len(optimizers), steps_made)
        shards = plan_shards(optimizers, world_size)
        self._counts = ServerCounts()
        servers = serve(rank, shards, optimizers, remaining, replies, self._counts)
        super().__init__(shards, servers, channel)
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
        channel.on(Kind.BLOCK, self._handle)
        channel.on(Kind.FINAL, self._handle)

    @override
    def metrics(self) -> dict[str, float]:
        return self._counts.metrics() | {
            "hier/psp/late": float(sum(worker.late for worker in self.workers)),
            "hier/psp/unsent": float(self._channel.dropped),
            "hier/psp/waiting_seconds": sum(worker.waiting_s for worker in self.workers),
        }

    def _handle(self, received: Received, now: float) -> None:
        self._worker_of[received.message.block].handle(received, now)
