"""Algorithm 1 of psp_sgd, worker side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.squares import all_finite
from lightning_hier.comm.profiling import profiler_range
from lightning_hier.parameter_server.engine import Worker
from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.message import NO_PAYLOAD, Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import Countdown, PushFacts
from lightning_hier.parameter_server.request_channel import RequestChannel, unanswered
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import Shard
from lightning_hier.parameter_server.updater import hyperparameters


class WorkerShard:
    """One shard on a worker.

    Args:
        shard: parameters of the shard.

    Attributes:
        host: copies of the parameters and their gradients.
        timestamp: version of the values in the parameters.
        newest: version of the newest received values.
        fresh: these values, unless they are already in the parameters.
        final: whether they are those of the rendezvous at which the worker waits.

    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.host = HostCopy(shard.parameters, shard.dtype)
        self.timestamp = 0
        self.newest = 0
        self.final = False
        self.fresh: Tensor | None = None

    def take(self, message: Message) -> None:
        """Store values if they are newer, or those of a rendezvous, which replace any others."""
        self.final = message.kind == Kind.FINAL
        if self.final or message.timestamp > self.newest:
            self.fresh, self.newest = message.payload, message.timestamp


class PSPWorker(Worker):
    """Pushes gradients of one optimizer and pulls its shards.

    A worker continues with the newest timestamp that it has received. In the published algorithm,
    it continues with one more than its own, so a worker that has fallen behind would never catch
    up.

    Args:
        optimizer: optimizer of the user; read for its hyperparameters before each step.
        shards: all shards of the optimizer, with this rank's parameters.
        channel: channel of the main thread.
        settings: settings of the optimizer.

    Attributes:
        shards: shards that are not empty, by number.
        timestamp: t of the next push.
        behind: number of steps that other workers have made and this one has not.
        late: number of shards that arrived after the worker had continued without them.
        waiting_s: seconds of waits for shards.

    """

    def __init__(
        self,
        optimizer: Optimizer,
        shards: Sequence[Shard],
        channel: RequestChannel,
        settings: PSPSettings,
    ) -> None:
        self.shards = {shard.number: WorkerShard(shard) for shard in shards if shard.size}
        self.timestamp = 0
        self.behind = 0
        self.late = 0
        self.waiting_s = 0.0
        self._optimizer = optimizer
        self._channel = channel
        self._settings = settings
        self._steps = 0
        # To the next gradient, which starts when enough shards have been received.
        self._countdown = Countdown()
        self._at_rendezvous = False

    @override
    def step(self) -> None:
        with profiler_range("hier/psp/push"):
            self.push()
        self._wait_and_pull()

    @override
    def abstain(self) -> None:
        self._push_nothing()
        self._wait_and_pull()

    def push(self) -> None:
        """Push the gradients in ``.grad`` (line 17), or abstain if one is not finite."""
        # All shards are read before the first push: one gradient that is not finite means that the
        # worker abstains from all of them.
        read, finite = [], True
        for shard in self.shards.values():
            # A new buffer, because the transport uses the last one until it has been sent.
            flat = shard.host.empty()
            gradients = shard.host.read_gradients(flat)
            read.append((shard, flat, gradients))
            finite = finite and all_finite(flat)
        if not finite:
            self._push_nothing()
            return
        latest = hyperparameters(self._optimizer)
        for shard, flat, gradients in read:
            facts = PushFacts(
                version=shard.timestamp,
                collectives_done=self._channel.collectives_done,
                steps=self._steps,
                hyperparameters=latest,
                absent=[at for at, gradient in enumerate(gradients) if gradient is None],
            )
            self._request(Kind.PUSH, shard, vars(facts), flat)
        self._end_step()

    def _push_nothing(self) -> None:
        """Respond to all servers without a gradient."""
        for shard in self.shards.values():
            facts = {"collectives_done": self._channel.collectives_done}
            self._request(Kind.ABSTAIN, shard, facts)
        self._end_step()

    @override
    def skip(self) -> None:
        self.behind = max(0, self.behind - 1)
        # Schedulers advance in a skipped step too, and servers use the most advanced settings.
        self._steps += 1

    def is_pulled(self, now: float) -> bool:
        """Whether enough shards have been received for the next gradient (line 15)."""
        pulled = sum([shard.newest > self.timestamp for shard in self.shards.values()])
        # A step of the warm-up waits for all shards.
        needed = len(self.shards)
        if not self._settings.warming(self.timestamp):
            needed = self._settings.needed_shards(needed)
        return self._countdown.is_over(
            complete=pulled == len(self.shards),
            enough=pulled >= needed,
            timeout_s=self._settings.pull_timeout_s,
            now=now,
        )

    def pull(self) -> None:
        """Write received values into the parameters, in place, and take the newest timestamp.

        A shard that has not been received keeps its values (lines 3 and 4). If it arrives later,
        the next pull uses it unless a newer one has arrived. In the published algorithm it is
        dropped, so a shard whose server is always slightly late would never be updated.
        """
        # Of all shards, because this worker would be late for servers that have the newest version.
        newest = self.timestamp
        for shard in self.shards.values():
            if shard.fresh is not None:
                shard.host.write_values(shard.fresh)
                shard.timestamp, shard.fresh = shard.newest, None
            newest = max(newest, shard.timestamp)
        self.behind += max(0, newest - self.timestamp - 1)
        self.timestamp = newest

    @override
    def arrive(self) -> None:
        self._at_rendezvous = True
        for shard in self.shards.values():
            shard.final = False
            self._request(Kind.ARRIVE, shard)

    @override
    def wait_for_global_model(self) -> None:
        self._channel.wait(self.has_global_model, self.missing)

    def has_global_model(self, now: float) -> bool:
        """Whether all servers have sent the values of the rendezvous."""
        return all(shard.final for shard in self.shards.values())

    @override
    def take_global_model(self) -> None:
        self._at_rendezvous = False
        self.pull()
        self.behind = 0

    def missing(self) -> str:
        """Names the servers of missing shards: of the next pull, or at the rendezvous."""
        shards = self.shards.values()
        if self._at_rendezvous:
            awaited, what = [s for s in shards if not s.final], "the values of the rendezvous"
        else:
            awaited = [s for s in shards if s.newest <= self.timestamp]
            what = f"shards newer than version {self.timestamp}"
        return unanswered(what, [shard.shard.home for shard in awaited])

    def handle(self, received: Received, now: float) -> None:
        """Handle a BLOCK or FINAL of a server."""
        message = received.message
        if self._at_rendezvous and message.kind == Kind.BLOCK:
            return  # the values of the rendezvous are newer
        self.late += message.kind == Kind.BLOCK and message.timestamp <= self.timestamp
        self.shards[message.block].take(message)

    def _wait_and_pull(self) -> None:
        with profiler_range("hier/psp/pull"):
            self.waiting_s += self._channel.wait(self.is_pulled, self.missing)
            self.pull()

    def _end_step(self) -> None:
        self._steps += 1
        self._countdown.since = None

    def _request(
        self,
        kind: Kind,
        shard: WorkerShard,
        facts: Mapping[str, Any] | None = None,
        payload: Tensor = NO_PAYLOAD,
    ) -> None:
        number, home = shard.shard.number, shard.shard.home
        self._channel.request(home, Message(kind, number, self.timestamp, facts or {}, payload))
