"""Exchange of a node with the master, in a thread of the group's first rank.

When the devices of the node have added enough gradients, it takes their sums and pushes the total.
The answer is the master's model, which replaces the replica. One push is in flight at a time.
Gradients that devices add in the meantime are part of the next push, which may contain more than
``push_period`` gradients.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import NO_PAYLOAD, Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.server_loop import BackgroundThread
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.two_stage.replica import Replica
from lightning_hier.parameter_server.updater import Hyperparameters

MASTER = 0
# Interval at which the devices' counters are read. Messages are handled immediately.
_PAUSE_S = 0.003
# If a device takes longer for an addition, it is stopped, and its sum waits for the next push.
_TAKING_LIMIT_S = 1.0
# The master reports missing nodes after one time limit, so this limit must be longer.
_WAITS = 2


@dataclass
class ExchangeCounts:
    """Totals of one node.

    Attributes:
        pushes: pushes that the master has answered.
        gradients: gradients in these pushes.
        overflowed: gradients whose sum was not finite and was discarded.
        staleness_sum: updates of the master between a node's model and its push, summed.
        seconds: seconds from a push to its reply.

    """

    pushes: int = 0
    gradients: int = 0
    overflowed: int = 0
    staleness_sum: int = 0
    seconds: float = 0.0


class Exchange:
    """Exchange of one optimizer. ``advance`` is called regularly, ``handle`` for messages.

    Args:
        block: number of the optimizer.
        channel: channel of the node's thread.
        replica: replica of the node.
        settings: settings of the run.
        hyperparameters: hyperparameters of the user's optimizer at the start.

    Attributes:
        replica: replica of the node.
        hyperparameters: hyperparameters for the next push, set by the thread of the first device.
        counts: totals.

    """

    def __init__(
        self,
        block: int,
        channel: RequestChannel,
        replica: Replica,
        settings: TwoStageSettings,
        hyperparameters: Hyperparameters,
    ) -> None:
        self._block = block
        self.replica = replica
        self._channel = channel
        self._settings = settings
        self._request: Message | None = None
        self._requested_at = 0.0
        self._version = 0
        self._rounds = 0
        self.hyperparameters = hyperparameters
        self.counts = ExchangeCounts()

    def advance(self, now: float) -> None:
        """Push, or report that the node has ended its epoch, unless a request is pending."""
        if self._request is not None:
            self._check_limit(now)
            return
        together = self._warming_up and self._all_made_step()
        if together or self.replica.pending >= self._least():
            with profiler_range("hier/two_stage/push"):
                self._push(now, together=together)
        elif self._all_arrived():
            self._send(Message(Kind.ARRIVE, self._block), now)

    def handle(self, message: Message, now: float) -> None:
        """Handle the master's answer."""
        request, self._request = self._request, None
        assert request is not None, "the master answers requests only"
        self._version = message.timestamp
        with profiler_range("hier/two_stage/pull"):
            self.replica.install(message.payload)
        # After the model, which devices copy as soon as the counter has increased.
        if message.kind == Kind.FINAL:
            self.replica.node.finals += 1
            return
        self.counts.pushes += 1
        self.counts.gradients += int(request.facts["count"])
        self.counts.staleness_sum += int(message.facts.get("staleness", 0))
        self.counts.seconds += now - self._requested_at

    def _send(self, request: Message, now: float) -> None:
        self._request, self._requested_at = request, now
        self._channel.request(MASTER, request)

    def _check_limit(self, now: float) -> None:
        limit_s = _WAITS * self._settings.timeout_s
        if now > self._requested_at + limit_s:
            raise PeerError(
                f"rank {MASTER}, the master of two-stage ASGD, has not answered for {limit_s:g} s: "
                "see its log"
            )

    @property
    def _warming_up(self) -> bool:
        return self._rounds < self._settings.warmup_steps

    def _least(self) -> float:
        """Minimum number of gradients in a push, which is lower at the end of an epoch."""
        if self._all_arrived():
            return 1
        # In the warm-up, only whole steps are pushed (`together`).
        return inf if self._warming_up else self._settings.push_period

    def _has_arrived(self, device: int) -> bool:
        return self.replica.devices[device].arrived > self.replica.node.finals

    def _all_arrived(self) -> bool:
        return all(map(self._has_arrived, range(len(self.replica.devices))))

    def _all_made_step(self) -> bool:
        """Whether every device that still trains has made its next step of the warm-up."""
        made = [device.steps > self._rounds for device in self.replica.devices]
        return any(made) and all(done or self._has_arrived(i) for i, done in enumerate(made))

    @torch.no_grad()
    def _push(self, now: float, *, together: bool) -> None:
        # Before the sums are taken, so that a device that waits always sees either its gradients or
        # the push (Device._must_wait).
        self.replica.node.begun += 1
        total, present, count = self._take_sums()
        if not together and not count:
            # There is nothing to push, so no answer will replace the replica.
            self.replica.node.installed = self.replica.node.begun
            return
        self._rounds += together
        facts = {
            "count": count,
            "together": together,
            # Read after the sums, so that gradients after a collective are sent with its number.
            "collectives_done": max(device.collectives_done for device in self.replica.devices),
            "hyperparameters": self.hyperparameters,
            "absent": (present == 0).nonzero().flatten().tolist(),
        }
        self._send(Message(Kind.PUSH, self._block, self._version, facts, total), now)

    def _take_sums(self) -> tuple[Tensor, Tensor, int]:
        """The sum, a flag for each parameter that has a gradient, and the number of gradients."""
        # A new tensor for each push, because the transport sends it without a copy.
        total, count = torch.empty_like(self.replica.weights), 0
        present = torch.zeros(len(self.replica.shard.parameters), dtype=torch.uint8)
        for sums in self.replica.accumulators:
            count += sums.take(total, present, fresh=count == 0, limit_s=_TAKING_LIMIT_S)
        if count and not all_finite(total):
            self.counts.overflowed += count
            count = 0
        return (total if count else NO_PAYLOAD), present, count


class Node(BackgroundThread):
    """Runs the exchanges of all optimizers.

    Args:
        channel: channel of the node's thread alone.
        exchanges: one for each optimizer, in their order.

    """

    def __init__(self, channel: RequestChannel, exchanges: Sequence[Exchange]) -> None:
        super().__init__("node")
        self.exchanges = list(exchanges)
        self._channel = channel
        for kind in (Kind.BLOCK, Kind.FINAL):
            channel.on(kind, self._handle)

    def _run_once(self) -> None:
        for exchange in self.exchanges:
            exchange.advance(time.monotonic())
        self._channel.poll(_PAUSE_S)

    def _fail(self, error: Exception) -> None:
        self._channel.fail(error)

    def _handle(self, received: Received, now: float) -> None:
        self.exchanges[received.message.block].handle(received.message, now)
