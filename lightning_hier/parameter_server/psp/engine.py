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
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings, PullRule
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.state import StateCollector
from lightning_hier.parameter_server.psp.worker import Worker
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler, Replies
from lightning_hier.parameter_server.user_optimizer import ServedParameterCheck, hyperparameters


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
        self._served = ServedParameterCheck(optimizers)
        self._server = ShardServer(rank, shards, optimizers, settings, replies)
        self._worker = Worker(
            shards,
            channel,
            pull_rule=pull_rule,
            warming=settings.warming,
        )
        self._collector = StateCollector(shards, channel)
        channel.on(Kind.BLOCK, self._worker.handle)
        channel.on(Kind.FINAL, self._worker.handle)
        channel.on(Kind.STATE, self._collector.handle)
        channel.on_gone(self._check_quorum)

    @property
    @override
    def handlers(self) -> Sequence[Handler]:
        return [self._server]

    @property
    @override
    def behind(self) -> int:
        return self._worker.behind

    @override
    def step(self, optimizer: int) -> None:
        own = self._optimizers[optimizer]
        self._served.check(optimizer, own)
        with profiler_range("hier/psp/push"):
            self._worker.push(optimizer, hyperparameters(own), time.monotonic())
        self._pull(optimizer)

    @override
    def abstain(self, optimizer: int) -> None:
        self._worker.abstain(optimizer, time.monotonic())
        self._pull(optimizer)

    @override
    def skip(self, optimizer: int) -> None:
        self._worker.skip(optimizer)

    @override
    def rendezvous(self) -> None:
        self._worker.arrive(time.monotonic())
        self._channel.wait(lambda now: self._worker.has_global_model(), self._worker.missing)
        self._worker.take_global()

    @override
    def wait_in_collective(self, number: int) -> None:
        # Not acknowledged: the collective calls this method again while it waits.
        for rank in range(self._settings.world_size):
            self._channel.send(rank, Message(Kind.WAITING, 0, number))

    @override
    def leave_collective(self, number: int) -> None:
        self._worker.collectives_done = number

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
            "hier/psp/late": float(self._worker.late),
            "hier/psp/unsent": float(self._worker.unsent),
            "hier/psp/waiting_seconds": self._waiting_s,
        }
        return self._server.counts.metrics() | worker

    def _pull(self, optimizer: int) -> None:
        with profiler_range("hier/psp/pull"):
            self._waiting_s += self._channel.wait(
                partial(self._worker.is_pulled, optimizer),
                partial(self._worker.missing, optimizer),
            )
            self._worker.pull(optimizer)

    def _check_quorum(self, rank: int, now: float) -> None:
        self._settings.rule.check_quorum(self._settings.world_size, self._channel.lost())
