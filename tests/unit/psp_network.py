"""Simulation of PSP-SGD in one process, with a slow network and a simulated clock.

A seed determines everything. :class:`Weather` describes how messages are delayed,
and how long ranks compute. There are no threads and no sockets: the simulation
calls servers and workers as the server loop and the request channel do.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.message import Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.pushes import ServerCounts
from lightning_hier.parameter_server.psp.server import serve
from lightning_hier.parameter_server.psp.worker import PSPWorker
from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.parameter_server.shards import plan_shards
from tests.unit.lone_channel import LoneChannel, Replying

MakeOptimizer = Callable[[list[Parameter]], Optimizer]
# Returns the gradients of a rank at a step, in the order of its parameters.
Gradients = Callable[[int, int, list[Parameter]], Sequence[Tensor | None]]
_TICK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How the network and the ranks behave.

    Attributes:
        latency_s: limits of the random latency of a message, in seconds.
        compute_s: seconds that each rank takes to compute a gradient.

    """

    latency_s: tuple[float, float] = (0.001, 0.001)
    compute_s: Sequence[float] = ()


class Rank:
    """One rank: its parameters, its server and its worker."""

    def __init__(self, number: int, cluster: Cluster, make: MakeOptimizer) -> None:
        self.number = number
        self.parameters = [Parameter(value.clone()) for value in cluster.start]
        self.optimizer = make(self.parameters)
        plan = plan_shards([self.optimizer], cluster.world_size)
        replies = Replying(lambda address, message: cluster.reply(self, address, message))
        self.counts = ServerCounts()
        of_rank = number, plan, [self.optimizer], [cluster.settings]
        self.server = serve(*of_rank, replies, self.counts)
        self.channel = LoneChannel(lambda rank, message: cluster.post(self, rank, message))
        self.worker = PSPWorker(self.optimizer, plan, self.channel, cluster.settings)
        self.plan = {block.number: block for block in plan}
        self.state = "computing"
        self.steps = 0
        self.inbox: list[Received] = []


class Cluster:
    """Ranks that train for some steps, with a rendezvous at the end.

    Args:
        world_size: number of ranks.
        start: initial parameters of all ranks.
        make: creates an optimizer.
        gradients: computes the gradients of a rank at a step.
        steps: number of steps of every rank.
        weather: behaviour of the network and the ranks.
        settings: settings of the run, or None for the default ones.
        rendezvous_every: steps between two rendezvous, or 0 for one at the end.
        seed: seed of all random numbers.

    """

    def __init__(
        self,
        world_size: int,
        start: Sequence[Tensor],
        gradients: Gradients,
        *,
        steps: int,
        make: MakeOptimizer = lambda parameters: optim.SGD(parameters, lr=1.0),
        weather: Weather | None = None,
        settings: PSPSettings | None = None,
        rendezvous_every: int = 0,
        seed: int = 0,
    ) -> None:
        self.start = list(start)
        self.world_size = world_size
        self.settings = settings or PSPSettings()
        self.weather = weather or Weather()
        self.now = 0.0
        self.seen: dict[tuple[int, int], int] = {}
        self.models: list[dict[int, list[Tensor]]] = []
        self._gradients = gradients
        self._steps = steps
        self._every = rendezvous_every or steps
        self._random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._latest: dict[tuple[str, int, int], float] = {}
        self.ranks = [Rank(number, self, make) for number in range(world_size)]

    def run(self) -> None:
        """Run until all ranks are done, or raise TimeoutError after 3000 s of the clock."""
        for rank in self.ranks:
            self._compute(rank)
        self._at(_TICK_S, self._tick)
        while any(rank.state != "done" for rank in self.ranks):
            self.now, _, happen = heapq.heappop(self._events)
            if self.now > 3000.0:
                raise TimeoutError({rank.number: rank.state for rank in self.ranks})
            happen()
            self._check_timestamps()

    def post(self, sender: Rank, to: int, message: Message) -> bool:
        """Send a message from a worker to a server."""
        target = self.ranks[to].server
        received = Received(sender.number, bytes([sender.number]), message)
        self._deliver("up", sender.number, to, lambda: target.handle(received, self.now))
        return True

    def reply(self, sender: Rank, address: bytes, message: Message) -> bool:
        """Send a message from a server to a worker."""
        target = self.ranks[address[0]]
        received = Received(sender.number, b"", message)
        self._deliver("down", sender.number, address[0], lambda: self._receive(target, received))
        return True

    def _deliver(self, way: str, sender: int, to: int, arrive: Callable[[], None]) -> None:
        at = self.now + self._random.uniform(*self.weather.latency_s)
        # Messages between two ranks keep their order.
        at = max(at, self._latest.get((way, sender, to), 0.0))
        self._latest[way, sender, to] = at
        self._at(at, arrive)

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), happen))

    def _receive(self, rank: Rank, received: Received) -> None:
        rank.inbox.append(received)
        self._poll(rank)

    def _tick(self) -> None:
        for rank in self.ranks:
            rank.server.tick(self.now)
            self._poll(rank)
        self._at(self.now + _TICK_S, self._tick)

    def _poll(self, rank: Rank) -> None:
        """Do the work of the main thread while it waits."""
        if rank.state == "computing":
            return
        while rank.inbox:
            rank.worker.handle(rank.inbox.pop(0), self.now)
        rank.channel.tick()
        if rank.state == "pulling" and rank.worker.is_pulled(self.now):
            rank.worker.pull()
            self._go_on(rank)
        elif rank.state == "arrived" and rank.worker.has_global_model(0.0):
            rank.worker.take_global_model()
            number = (rank.steps - 1) // self._every
            while len(self.models) <= number:
                self.models.append({})
            self.models[number][rank.number] = [p.detach().clone() for p in rank.parameters]
            if rank.steps >= self._steps:
                rank.state = "done"
            else:
                self._compute(rank)

    def _compute(self, rank: Rank) -> None:
        rank.state = "computing"
        seconds = self.weather.compute_s[rank.number] if self.weather.compute_s else 0.1
        self._at(self.now + seconds, lambda: self._push(rank))

    def _push(self, rank: Rank) -> None:
        gradients = self._gradients(rank.number, rank.steps, rank.parameters)
        for parameter, gradient in zip(rank.parameters, gradients, strict=True):
            parameter.grad = gradient
        rank.worker.push()
        rank.steps += 1
        rank.state = "pulling"
        self._poll(rank)

    def _go_on(self, rank: Rank) -> None:
        if rank.steps % self._every == 0 or rank.steps >= self._steps:
            rank.worker.arrive()
            rank.state = "arrived"
            self._poll(rank)
        else:
            self._compute(rank)

    def _check_timestamps(self) -> None:
        """Check that the timestamp of no served shard has decreased."""
        for rank in self.ranks:
            for number, served in rank.server.of_shard.items():
                key = rank.number, number
                assert served.timestamp >= self.seen.get(key, 0), key
                self.seen[key] = served.timestamp
