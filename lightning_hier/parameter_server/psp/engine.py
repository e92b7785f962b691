"""PSP-SGD on a rank: worker, server, and waits of the worker for servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.parameter_server.engine import Engine, Snapshot
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings, PullRule
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.state import StateCollector
from lightning_hier.parameter_server.psp.worker import Worker
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler, Replies
from lightning_hier.parameter_server.user_optimizer import hyperparameters


class PSPEngine(Engine):
    """Algorithm 1 of psp_sgd. A step raises QuorumError if too few ranks are left.

    Args:
        rank: rank of this process.
        optimizers: optimizers of the user; their parameters have the same values on all ranks.
        channel: channel of the rank's main thread.
        replies: the rank's server port.
        settings: settings of all servers.
        pull_rule: b and tau_2.

    """

    def __init__(
        self,
        rank: int,
        optimizers: Sequence[Optimizer],
        channel: RequestChannel,
        replies: Replies,
        settings: PSPSettings,
        pull_rule: PullRule,
    ) -> None:
        self._optimizers = list(optimizers)
        self._channel = channel
        self._settings = settings
        self._waiting_s = 0.0
        shards = plan_shards(optimizers, settings.world_size)
        self._server = ShardServer(rank, shards, optimizers, settings, replies)
        self._workers = [
            Worker(
                [shard for shard in shards if shard.optimizer == index],
                channel,
                pull_rule=pull_rule,
                warming=partial(settings.warming, index),
            )
            for index in range(len(optimizers))
        ]
        self._worker_of = {number: worker for worker in self._workers for number in worker.shards}
        self._collector = StateCollector(shards, channel)
        channel.on(Kind.BLOCK, self._handle)
        channel.on(Kind.FINAL, self._handle)
        channel.on(Kind.STATE, self._collector.handle)
        channel.on_gone(self._check_quorum)

    @property
    @override
    def handlers(self) -> Sequence[Handler]:
        return [self._server]

    @property
    @override
    def behind(self) -> int:
        return max((worker.behind for worker in self._workers), default=0)

    @override
    def step(self, optimizer: int) -> None:
        latest = hyperparameters(self._optimizers[optimizer])
        with profiler_range("hier/psp/push"):
            self._workers[optimizer].push(latest, time.monotonic())
        self._pull(self._workers[optimizer])

    @override
    def abstain(self, optimizer: int) -> None:
        self._workers[optimizer].abstain(time.monotonic())
        self._pull(self._workers[optimizer])

    @override
    def skip(self, optimizer: int) -> None:
        self._workers[optimizer].skip()

    @override
    def rendezvous(self) -> None:
        # All arrive first, so that the rendezvous of all optimizers overlap.
        for worker in self._workers:
            worker.arrive(time.monotonic())
        for worker in self._workers:
            self._channel.wait(worker.has_global_model, worker.missing)
        # After all waits, so that an error leaves the parameters as they were.
        for worker in self._workers:
            worker.take_global()

    @override
    def wait_in_collective(self, number: int) -> None:
        # Not acknowledged: the collective calls this method again while it waits.
        for rank in range(self._settings.world_size):
            self._channel.send(rank, Message(Kind.WAITING, 0, number))

    @override
    def leave_collective(self, number: int) -> None:
        for worker in self._workers:
            worker.collectives_done = number

    @override
    def snapshot(self) -> Snapshot:
        self._collector.request(time.monotonic())
        self._channel.wait(lambda now: self._collector.is_complete(), self._collector.missing)
        return self._collector.snapshot(len(self._optimizers))

    @override
    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        self._server.load(optimizer, dict(state))

    @override
    def metrics(self) -> dict[str, float]:
        worker = {
            "hier/psp/late": float(sum(worker.late for worker in self._workers)),
            "hier/psp/unsent": float(sum(worker.unsent for worker in self._workers)),
            "hier/psp/waiting_seconds": self._waiting_s,
        }
        return self._server.counts.metrics() | worker

    def _pull(self, worker: Worker) -> None:
        with profiler_range("hier/psp/pull"):
            self._waiting_s += self._channel.wait(worker.is_pulled, worker.missing)
            worker.pull()

    def _handle(self, received: Received, now: float) -> None:
        self._worker_of[received.message.block].handle(received, now)

    def _check_quorum(self, rank: int, now: float) -> None:
        # Of the lost ranks only: ranks that have left have finished training.
        self._settings.rule.check_quorum(self._settings.world_size, self._channel.lost())
