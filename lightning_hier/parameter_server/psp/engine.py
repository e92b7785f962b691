"""PSP-SGD on one rank: its worker, its server, and the waits of the worker for servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch.optim import Optimizer

from lightning_hier.comm.profiling import profiler_range
from lightning_hier.parameter_server.engine import Snapshot
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.psp.server import ShardServer
from lightning_hier.parameter_server.psp.settings import PSPSettings, PullRule
from lightning_hier.parameter_server.psp.shards import plan_shards
from lightning_hier.parameter_server.psp.state import StateCollector
from lightning_hier.parameter_server.psp.worker import Worker
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import Handler, Replies
from lightning_hier.parameter_server.user_optimizer import ServedParameterCheck, hyperparameters


class PSPEngine:
    """An :class:`~lightning_hier.parameter_server.engine.Engine` for Algorithm 1 of psp_sgd.

    Args:
        rank: of this process.
        optimizers: of the user; their parameters have the same values on all ranks.
        channel: of the rank's main thread.
        replies: the rank's server port.
        settings: of all servers.
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
    def handlers(self) -> Sequence[Handler]:
        """Handlers for the server loop of this rank."""
        return [self._server]

    @property
    def behind(self) -> int:
        """Number of steps that this worker may skip to catch up with the others."""
        return self._worker.behind

    def step(self, optimizer: int) -> None:
        """Push the gradients in ``.grad``, and wait for enough shards.

        Raises:
            PeerError: a rank is missing that is needed to go on.
            QuorumError: too few ranks are left.
            RuntimeError: a parameter that was frozen at the start has a gradient.

        """
        own = self._optimizers[optimizer]
        self._served.check(optimizer, own)
        with profiler_range("hier/psp/push"):
            self._worker.push(optimizer, hyperparameters(own), time.monotonic())
        self._pull(optimizer)

    def abstain(self, optimizer: int) -> None:
        """End a step without a gradient, and wait for enough shards; raises as :meth:`step`."""
        self._worker.abstain(optimizer, time.monotonic())
        self._pull(optimizer)

    def skip(self, optimizer: int) -> None:
        """Skip a step that other workers have made."""
        self._worker.skip(optimizer)

    def rendezvous(self) -> None:
        """Write the global model into the parameters, in place; the same bits on all ranks.

        Every live rank must call it. Raises as :meth:`step`.
        """
        self._worker.arrive(time.monotonic())
        self._channel.handle_queued()
        self._channel.wait(lambda now: self._worker.has_global_model(), self._worker.missing)
        self._worker.take_global()

    def wait_in_collective(self, number: int) -> None:
        """Notify all servers, so that those of every shard go on without this rank."""
        for rank in range(self._settings.world_size):
            self._channel.send(rank, Message(Kind.WAITING, 0, number))

    def leave_collective(self, number: int) -> None:
        """Send with each later push that the collective has ended."""
        self._worker.collectives_done = number

    def snapshot(self) -> Snapshot:
        """State of all servers. Any rank may call it; the others go on."""
        self._collector.request(time.monotonic())
        self._channel.handle_queued()
        self._channel.wait(lambda now: self._collector.is_complete(), self._collector.missing)
        states = [self._collector.states(index) for index in range(len(self._optimizers))]
        return Snapshot(self._collector.values(), states)

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Load the state of an optimizer, before training starts."""
        self._server.load(optimizer, dict(state))

    def metrics(self) -> dict[str, float]:
        """Counts of this rank's server and worker, by metric name."""
        worker = {
            "hier/psp/late": float(self._worker.late),
            "hier/psp/unsent": float(self._worker.unsent),
            "hier/psp/waiting_seconds": self._waiting_s,
        }
        return self._server.counts.metrics() | worker

    def close(self) -> None:
        """Release nothing: the engine holds nothing outside of this process."""

    def _pull(self, optimizer: int) -> None:
        with profiler_range("hier/psp/pull"):
            self._channel.handle_queued()
            self._waiting_s += self._channel.wait(
                partial(self._worker.is_pulled, optimizer),
                partial(self._worker.missing, optimizer),
            )
            self._worker.pull(optimizer)

    def _check_quorum(self, rank: int, now: float) -> None:
        self._settings.rule.check_quorum(self._settings.world_size, self._channel.lost())
