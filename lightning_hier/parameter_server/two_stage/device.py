"""A device: it updates its node's replica without a lock, and adds up its gradients (eq. 2, 3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.comm.roll_call import PeerError
from lightning_hier.parameter_server.client import Client
from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.hyperparameters import hyperparameters
from lightning_hier.parameter_server.two_stage.master_model import shaped
from lightning_hier.parameter_server.two_stage.replica import Replica
from lightning_hier.parameter_server.two_stage.required_ranks import RequiredRanks
from lightning_hier.parameter_server.two_stage.settings import TwoStageSettings
from lightning_hier.parameter_server.updater import Updater

_log = logging.getLogger(__name__)

# At an epoch's end a node waits for its turn and then for the other nodes, each for two time limits
# at most. It knows who is missing, so it speaks first.
_WAITS = 5


@dataclass
class DeviceCounts:
    """Totals of one device.

    Attributes:
        gradients: added.
        nonfinite: kept out of replica and accumulator; and updates of the replica that were undone,
            because NaN or inf came of them.
        refreshes: copies of the replica taken.
        waiting_seconds: for a new replica or at a rendezvous, in which nothing was computed.

    """

    gradients: int = 0
    nonfinite: int = 0
    refreshes: int = 0
    waiting_seconds: float = 0.0


class Device:
    """One rank's training of one optimizer's parameters. Used by the rank's main thread.

    The replica is updated by a copy of the user's optimizer, with state (momentum, moments) of this
    device's own: devices see different gradients, and sharing state would need locks. It starts
    empty, is not saved, and stays when the master's model replaces the replica.

    Args:
        number: of the device in its node.
        ranks: devices of the node.
        replica: of the node.
        optimizer: of the user; read for its hyperparameters before each step, never changed.
        parameters: this rank's own copies; values are written in place.
        client: of the main thread.
        required_ranks: the ranks without which this one can't go on.
        settings: of the run.

    """

    def __init__(
        self,
        number: int,
        ranks: Sequence[int],
        replica: Replica,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        client: Client,
        required_ranks: RequiredRanks,
        settings: TwoStageSettings,
    ) -> None:
        self._ranks = list(ranks)
        self._replica = replica
        self._own = replica.devices[number]
        self._accumulator = replica.accumulators[number]
        self._optimizer = optimizer
        self._updater = Updater(optimizer, shaped(replica.weights, parameters))
        self._host = HostCopy(parameters, replica.weights.dtype)
        self._buffer = self._host.empty()
        self._client = client
        self._required_ranks = required_ranks
        self._settings = settings
        self._seen = 0
        self._since_refresh = 0
        self.counts = DeviceCounts()

    def step(self) -> None:
        """Make a step with the gradients in ``.grad``; refresh the parameters where it is time.

        Raises:
            PeerError: the node or the master is gone, or did not answer in time.

        """
        self._check_peers()
        gradients = self._host.read_gradients(self._buffer)
        present = torch.tensor([one is not None for one in gradients], dtype=torch.uint8)
        if not all_finite(self._buffer):
            self.counts.nonfinite += 1
            self._end_step()
            return
        if not self._warming_up:
            # Before the sum: what the master answers with must not be updated by it again.
            self._update(gradients)
        if not self._accumulator.add(self._buffer, present, self._settings.timeout_s):
            raise PeerError(self._missing("the node's lock on this device's sum"))
        self.counts.gradients += 1
        self._end_step()

    def abstain(self) -> None:
        """Make a step without a gradient. Errors as in :meth:`step`."""
        self._check_peers()
        self._end_step()

    def arrive(self) -> None:
        """Tell the node that this device adds no more until all have met."""
        self._own.arrived += 1

    def leave_collective(self, number: int) -> None:
        """Tell the node that a meeting is over, which says so with its next push."""
        self._own.collectives_done = number

    def finish_rendezvous(self) -> None:
        """Take the master's model once all nodes have arrived.

        It returns when all devices of this node have their copy: before that, none of them may
        update the replica.

        Raises:
            PeerError: somebody did not come in time.

        """
        number = self._own.arrived
        self._wait(lambda: self._replica.node.finals >= number, "all nodes at the epoch's end")
        self._refresh()
        self._own.finished = number
        self._wait(lambda: not self._unfinished(number), "the copies of the other devices")

    def _check_peers(self) -> None:
        self._client.poll()
        self._required_ranks.check()

    def _update(self, gradients: Sequence[Tensor | None]) -> None:
        """Update the replica (eq. 2).

        If NaN or inf come of it the replica goes back to what this device had copied, and the
        state of its optimizer starts anew. What the others have added to the replica since then
        is not lost: it is in their sums.
        """
        self._updater.step(gradients, hyperparameters=hyperparameters(self._optimizer))
        if all_finite(self._replica.weights):
            return
        self.counts.nonfinite += 1
        self._updater.reset()
        self._replica.weights.copy_(self._host.read_values(self._host.empty()))
        _log.warning(
            "an update of the replica is not finite: it goes back to this device's copy, and the "
            "state of its optimizer starts anew"
        )

    @property
    def _warming_up(self) -> bool:
        return self._own.steps < self._settings.warmup_steps

    def _end_step(self) -> None:
        together = self._warming_up
        self._own.steps += 1
        self._since_refresh += 1
        if together:
            self._wait(lambda: self._replica.node.installed > self._seen, "the step of all devices")
        elif not self._settings.double_buffering:
            self._wait(lambda: not self._must_wait(), "the master's answer")
        renewed = self._replica.node.installed > self._seen
        if renewed or self._since_refresh >= self._settings.refresh_period:
            self._refresh()

    def _must_wait(self) -> bool:
        # In this order: a push is under way before its sums are taken.
        full = self._replica.pending >= self._settings.push_period
        return full or self._replica.exchanging

    @torch.no_grad()
    def _refresh(self) -> None:
        # Read first: a replica that is replaced meanwhile is copied again at the next step.
        self._seen = self._replica.node.installed
        self._host.write_values(self._replica.weights, by_way_of=self._buffer)
        self._since_refresh = 0
        self.counts.refreshes += 1

    def _unfinished(self, number: int) -> list[int]:
        gone = self._client.gone()
        devices = zip(self._ranks, self._replica.devices, strict=True)
        return [rank for rank, own in devices if own.finished < number and rank not in gone]

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if done():
                return True
            self._required_ranks.check()
            return False

        limit_s = _WAITS * self._settings.timeout_s
        missing = partial(self._missing, what)
        self.counts.waiting_seconds += self._client.wait(look, missing, limit_s=limit_s)

    def _missing(self, what: str) -> str:
        return (
            f"waited for {what}, in the node of ranks {self._ranks[0]} to {self._ranks[-1]}: look "
            f"at the logs of rank {self._ranks[0]}, which exchanges with the master, and of rank "
            f"0, which is the master; ranks that are slow but healthy need a larger timeout"
        )
