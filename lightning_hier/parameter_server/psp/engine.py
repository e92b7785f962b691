"""PSP-SGD on one rank: its worker, its server, and the waits between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.engine import Snapshot
from lightning_hier.parameter_server.hyperparameters import hyperparameters
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.block_server import BlockServer
from lightning_hier.parameter_server.psp.plan import plan_blocks
from lightning_hier.parameter_server.psp.pull_rule import PullRule
from lightning_hier.parameter_server.psp.settings import PSPSettings
from lightning_hier.parameter_server.psp.state_collector import StateCollector
from lightning_hier.parameter_server.psp.worker import Worker
from lightning_hier.parameter_server.replies import Replies
from lightning_hier.parameter_server.served import Served
from lightning_hier.parameter_server.server_loop import Handler


class PSPEngine:
    """An :class:`~lightning_hier.parameter_server.engine.Engine` after Algorithm 1 of psp_sgd.

    Args:
        rank: of this process.
        optimizers: of the user; their parameters hold the same values on all ranks.
        client: of the rank's main thread.
        replies: the rank's server port.
        settings: what all servers go by.
        pull_rule: b and tau_2.

    """

    def __init__(
        self,
        rank: int,
        optimizers: Sequence[Optimizer],
        client: Client,
        replies: Replies,
        settings: PSPSettings,
        pull_rule: PullRule,
    ) -> None:
        self._optimizers = list(optimizers)
        self._client = client
        self._settings = settings
        blocks = plan_blocks(optimizers, settings.world_size)
        self._served = Served(optimizers)
        self._server = BlockServer(rank, blocks, optimizers, settings, replies)
        self._worker = Worker(
            blocks,
            settings.world_size,
            client.send,
            pull_rule=pull_rule,
            warming=settings.warming,
        )
        self._collector = StateCollector(blocks, settings.world_size, client.send)
        client.on(Kind.BLOCK, self._handle)
        client.on(Kind.FINAL, self._handle)
        client.on(Kind.STATE, self._handle_state)
        client.on_gone(self._handle_gone)

    @property
    def handlers(self) -> Sequence[Handler]:
        """What the rank's server_loop has to do."""
        return [self._server]

    @property
    def behind(self) -> int:
        """How many steps this worker may leave out to be where the others are."""
        return self._worker.behind

    def step(self, optimizer: int) -> None:
        """Push the gradients that lie in ``.grad``, and wait for enough blocks.

        Raises:
            PeerError: a rank that can't be done without is missing.
            QuorumError: too few ranks are left.
            RuntimeError: a parameter that was frozen at the start is to be trained.

        """
        own = self._optimizers[optimizer]
        self._served.check(optimizer, own)
        self._worker.push(optimizer, hyperparameters(own), time.monotonic())
        self._pull(optimizer)

    def abstain(self, optimizer: int) -> None:
        """End a step without a gradient, and wait for enough blocks; raises as :meth:`step`."""
        self._worker.abstain(optimizer, time.monotonic())
        self._pull(optimizer)

    def skip(self, optimizer: int) -> None:
        """Leave out a step that the others have made already."""
        self._worker.skip(optimizer)

    def rendezvous(self) -> None:
        """Put the global model into the parameters, in place; the same bits on all ranks.

        Every rank that is there must call it. Raises as :meth:`step`.
        """
        self._worker.arrive(time.monotonic())
        self._wait(lambda now: self._worker.is_dispersed(), self._worker.missing)
        self._worker.take_global()

    def wait_in_collective(self, number: int) -> None:
        """Tell all servers: whichever of them serves a block goes on without this rank."""
        for rank in range(self._settings.world_size):
            self._client.send(rank, Message(Kind.WAITING, 0, number))

    def leave_collective(self, number: int) -> None:
        """Say with what is pushed from now on that the meeting is over."""
        self._worker.collectives_done = number

    def snapshot(self) -> Snapshot:
        """State of all servers. Any rank may call it; the others go on."""
        self._collector.ask(time.monotonic())
        self._wait(lambda now: self._collector.is_complete(), self._collector.missing)
        states = [self._collector.states(index) for index in range(len(self._optimizers))]
        return Snapshot(self._collector.values(), states)

    def load(self, optimizer: int, state: Mapping[int, Any]) -> None:
        """Take over the state of an optimizer, before training starts."""
        self._server.load(optimizer, dict(state))

    def metrics(self) -> dict[str, float]:
        """What this rank's server and worker have counted, by name."""
        return self._server.counts.metrics() | self._worker.counts.metrics()

    def close(self) -> None:
        """Nothing to let go of."""

    def _pull(self, optimizer: int) -> None:
        self._worker.counts.waiting_s += self._wait(
            lambda now: self._worker.is_pulled(optimizer, now),
            lambda: self._worker.missing(optimizer),
        )
        self._worker.pull(optimizer)

    def _wait(self, is_over: Callable[[float], bool], missing: Callable[[], str]) -> float:
        # Ranks that are gone, and blocks that came while this one computed, are seen first.
        while self._client.poll():
            pass

        def done() -> bool:
            now = time.monotonic()
            self._worker.tick(now)
            self._collector.tick(now)
            return is_over(now)

        return self._client.wait(done, missing)

    def _handle(self, received: Received) -> None:
        self._worker.handle(received, time.monotonic())

    def _handle_state(self, received: Received) -> None:
        self._collector.handle(received, time.monotonic())

    def _handle_gone(self, rank: int) -> None:
        now = time.monotonic()
        self._worker.peer_gone(rank, now)
        self._collector.peer_gone(rank, now)
        self._settings.rule.check_quorum(self._settings.world_size, self._client.lost())
