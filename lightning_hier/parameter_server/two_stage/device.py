"""A device: updates the replica of its node without a lock, and sums gradients (eq. 2, 3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.engine import Worker
from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.settings import TwoStageSettings
from lightning_hier.parameter_server.two_stage.node import Exchange
from lightning_hier.parameter_server.two_stage.replica import Replica
from lightning_hier.parameter_server.updater import Updater, hyperparameters

_log = logging.getLogger(__name__)

# At the end of an epoch a node waits for its turn and then for the other nodes, each for at most
# two time limits. The node reports missing ranks, so this limit must be longer.
_WAITS = 5


@dataclass
class DeviceCounts:
    """Totals of one device.

    Attributes:
        gradients: number of added gradients.
        nonfinite: number of gradients that were discarded, and updates of the replica that were
            undone, because of NaN or inf.
        refreshes: number of copies of the replica.
        waiting_seconds: seconds of waits for a new replica or at a rendezvous.

    """

    gradients: int = 0
    nonfinite: int = 0
    refreshes: int = 0
    waiting_seconds: float = 0.0


class Device(Worker):
    """Training of one optimizer's parameters on a rank. Used by the main thread.

    The replica is updated by a copy of the user's optimizer. Its state (momentum, moments) belongs
    to this device, because devices have different gradients and shared state would need locks. It
    is initially empty, is not saved, and is kept when the master's model replaces the replica.

    Args:
        number: number of the device in its node.
        ranks: devices of the node. The first one exchanges gradients with the master.
        channel: channel of the main thread.
        replica: replica of the node.
        optimizer: optimizer of the user; read for its hyperparameters before each step, never
            changed.
        settings: settings of the run.
        exchange: exchange with the master, if this is the first device of the node.

    Attributes:
        counts: totals of this device.

    """

    def __init__(
        self,
        number: int,
        ranks: Sequence[int],
        channel: RequestChannel,
        replica: Replica,
        optimizer: Optimizer,
        settings: TwoStageSettings,
        exchange: Exchange | None = None,
    ) -> None:
        self._ranks = list(ranks)
        self._replica = replica
        self._counters = replica.devices[number]
        self._accumulator = replica.accumulators[number]
        self._optimizer = optimizer
        parameters = replica.shard.parameters
        views = replica.shard.views(replica.weights)
        self._updater = Updater(optimizer, dict(zip(parameters, views, strict=True)))
        self._host = HostCopy(parameters, replica.weights.dtype)
        # One buffer for gradients and for refreshes, which do not overlap in time.
        self._buffer = self._host.empty()
        self._channel = channel
        self._settings = settings
        self._exchange = exchange
        self._latest = hyperparameters(optimizer)
        self._seen = 0
        self._since_refresh = 0
        self.counts = DeviceCounts()

    @override
    def step(self) -> None:
        self._begin_step()
        gradients = self._host.read_gradients(self._buffer)
        present = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.uint8)
        if not all_finite(self._buffer):
            self.counts.nonfinite += 1
            # As any other step: in the warm-up, the other devices wait for it.
            self._end_step()
            return
        if not self._warming_up:
            # Before the addition to the sum, because the master's answer will include this
            # gradient.
            self._update(gradients)
        with profiler_range("hier/two_stage/accumulate"):
            added = self._accumulator.add(self._buffer, present, self._settings.timeout_s)
        if not added:
            raise PeerError(self._missing("the node's lock on this device's sum"))
        self.counts.gradients += 1
        self._end_step()

    @override
    def abstain(self) -> None:
        self._begin_step()
        self._end_step()

    @override
    def arrive(self) -> None:
        self._counters.arrived += 1

    @override
    def wait_for_global_model(self) -> None:
        number = self._counters.arrived
        self._wait(lambda: self._replica.node.finals >= number, "all nodes at the end of the epoch")

    @override
    def take_global_model(self) -> None:
        number = self._counters.arrived
        self._refresh()
        self._counters.finished = number
        # None of the devices may update the replica before all of them have copied it.
        self._wait(lambda: not self._unfinished(number), "the copies of the other devices")

    def _begin_step(self) -> None:
        self._channel.poll()  # raises if the server loop of this rank has failed
        # The node's next push contains it.
        self._counters.collectives_done = self._channel.collectives_done
        # Read anew at each step, because schedulers change the user's optimizer. A new list, so
        # that the node's thread never reads a half-written one.
        self._latest = hyperparameters(self._optimizer)
        if self._exchange is not None:
            self._exchange.hyperparameters = self._latest

    def _update(self, gradients: Sequence[Tensor | None]) -> None:
        """Update the replica (eq. 2).

        After an update to NaN or inf, the replica is restored from this device's copy, and the
        state of its optimizer is reset. Updates by other devices since the copy are not lost,
        because their sums contain them.
        """
        self._updater.step(gradients, hyperparameters=self._latest)
        if all_finite(self._replica.weights):
            return
        self.counts.nonfinite += 1
        self._updater.reset()
        self._replica.weights.copy_(self._host.read_values())
        _log.warning(
            "an update of the replica is not finite: the replica is restored from this device's "
            "copy, and the state of the device's optimizer is reset"
        )

    @property
    def _warming_up(self) -> bool:
        return self._counters.steps < self._settings.warmup_steps

    def _end_step(self) -> None:
        # The node pushes a step of the warm-up when all devices have counted it, so it is counted
        # before the wait.
        together = self._warming_up
        self._counters.steps += 1
        self._since_refresh += 1
        if together:
            self._wait(lambda: self._replica.node.installed > self._seen, "the step of all devices")
        elif not self._settings.double_buffering:
            self._wait(lambda: not self._must_wait(), "the master's answer")
        renewed = self._replica.node.installed > self._seen
        if renewed or self._since_refresh >= self._settings.refresh_period:
            self._refresh()

    def _must_wait(self) -> bool:
        # In this order, because a push is in flight before its sums are taken.
        full = self._replica.pending >= self._settings.push_period
        return full or self._replica.exchanging

    @torch.no_grad()
    def _refresh(self) -> None:
        # Read before the copy, so that a replica that is replaced during the copy is copied again.
        self._seen = self._replica.node.installed
        with profiler_range("hier/two_stage/refresh"):
            self._host.write_values(self._replica.weights, by_way_of=self._buffer)
        self._since_refresh = 0
        self.counts.refreshes += 1

    def _unfinished(self, number: int) -> list[int]:
        devices = zip(self._ranks, self._replica.devices, strict=True)
        return [rank for rank, counters in devices if counters.finished < number]

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        limit_s = _WAITS * self._settings.timeout_s
        missing = partial(self._missing, what)
        self.counts.waiting_seconds += self._channel.wait(
            lambda now: done(), missing, limit_s=limit_s
        )

    def _missing(self, what: str) -> str:
        return (
            f"waited for {what}, in the node of ranks {self._ranks[0]} to {self._ranks[-1]}: see "
            f"the logs of rank {self._ranks[0]}, which exchanges with the master, and of rank 0, "
            f"which is the master; increase the timeout if ranks are only slow"
        )
