"""Algorithm 1 of psp_sgd, worker side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.comm.roll_call import PeerError
from lightning_hier.parameter_server.host_copy import HostCopy
from lightning_hier.parameter_server.hyperparameters import Hyperparameters
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.counts import WorkerCounts
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.psp.pull_rule import PullRule
from lightning_hier.parameter_server.psp.push_facts import PushFacts
from lightning_hier.parameter_server.psp.worker_block import WorkerBlock


@dataclass
class _Progress:
    """How far a worker has come with one optimizer.

    Attributes:
        held: its blocks, without the empty ones.
        timestamp: t, with which it will push next.
        steps: that it has made or left out.
        behind: steps that others have made and it has not.
        enough_since: since when as many blocks as needed have been there.

    """

    held: list[WorkerBlock]
    timestamp: int = 0
    steps: int = 0
    behind: int = 0
    enough_since: float | None = None

    @property
    def pulled(self) -> int:
        """Blocks that are newer than what it has pushed for."""
        return sum(one.newest > self.timestamp for one in self.held)


class Worker:
    """Pushes gradients, and takes blocks. It neither waits nor receives: tests drive it.

    A worker goes on with the newest timestamp that it has received ("fast-forward"), and not with
    one more than before, as printed: one that has fallen behind would be late for ever.

    Args:
        blocks: the whole plan, with this rank's parameters.
        world_size: number of ranks.
        send: to a rank's server; False if it could not be sent.
        pull_rule: b and tau_2.
        warming: whether the step of an optimizer from a version waits for all blocks.
        ask_again_s: after so many seconds of silence at least a request is put again.

    Attributes:
        counts: what it counts.
        collectives_done: number of the last meeting that is over; 0: none is.

    """

    def __init__(
        self,
        blocks: Sequence[ParameterBlock],
        world_size: int,
        send: Callable[[int, Message], bool],
        *,
        pull_rule: PullRule,
        warming: Callable[[int, int], bool] = lambda optimizer, version: False,
        ask_again_s: float = 2.0,
    ) -> None:
        self.counts = WorkerCounts()
        self.collectives_done = 0
        self._world_size = world_size
        self._rule = pull_rule
        self._warming = warming
        self._gone: set[int] = set()
        self._held = {
            block.number: WorkerBlock(block, send, ask_again_s=ask_again_s)
            for block in blocks
            if block.size
        }
        optimizers = 1 + max((block.optimizer for block in blocks), default=-1)
        self._progress = [
            _Progress([one for one in self._held.values() if one.block.optimizer == index])
            for index in range(optimizers)
        ]
        self._rendezvous = 0
        self._at_rendezvous = False

    @property
    def behind(self) -> int:
        """Steps that others have made and this worker has not."""
        return max((progress.behind for progress in self._progress), default=0)

    def timestamp(self, optimizer: int) -> int:
        """t of an optimizer: the version for which it will push next."""
        return self._progress[optimizer].timestamp

    def push(self, optimizer: int, hyperparameters: Hyperparameters, now: float) -> None:
        """Push the gradients that lie in ``.grad`` (line 17), or abstain if one is not finite."""
        progress = self._progress[optimizer]
        gradients = [_gradient(one.host) for one in progress.held]
        if not all(all_finite(flat) for flat, _ in gradients):
            self.abstain(optimizer, now)
            return
        told = [dict(group) for group in hyperparameters]
        for one, (flat, absent) in zip(progress.held, gradients, strict=True):
            facts = PushFacts(
                version=one.timestamp,
                final=one.final,
                collectives_done=self.collectives_done,
                steps=progress.steps,
                hyperparameters=told,
                absent=absent,
            )
            self._ask(one, Kind.PUSH, progress.timestamp, facts.to_facts(), now, payload=flat)
        self._begin_pull(progress)

    def abstain(self, optimizer: int, now: float) -> None:
        """Respond to all servers without a gradient."""
        progress = self._progress[optimizer]
        for one in progress.held:
            facts = {"final": one.final, "collectives_done": self.collectives_done}
            self._ask(one, Kind.ABSTAIN, progress.timestamp, facts, now)
        self._begin_pull(progress)

    def skip(self, optimizer: int) -> None:
        """Leave out a step that others have made."""
        progress = self._progress[optimizer]
        progress.behind = max(0, progress.behind - 1)
        progress.steps += 1

    def is_pulled(self, optimizer: int, now: float) -> bool:
        """Whether enough blocks have come for the next gradient (line 15)."""
        progress = self._progress[optimizer]
        blocks, pulled = len(progress.held), progress.pulled
        warming = self._warming(optimizer, progress.timestamp)
        needed = blocks if warming else self._rule.needed(blocks)
        if pulled < needed:
            progress.enough_since = None
        elif progress.enough_since is None:
            progress.enough_since = now
        return self._rule.is_over(
            pulled=pulled,
            needed=needed,
            blocks=blocks,
            enough_since=progress.enough_since,
            now=now,
        )

    def pull(self, optimizer: int) -> None:
        """Write what has come into the parameters, in place, and go on with the newest timestamp.

        A block that has not come keeps its values (lines 3 and 4). One that comes later is taken at
        the next pull if nothing newer has come: as printed it would be dropped, and the block of a
        server that is always a little late would never be seen again.
        """
        progress = self._progress[optimizer]
        for one in progress.held:
            one.write()
        if progress.held:
            newest = max(one.timestamp for one in progress.held)
            progress.behind += max(0, newest - progress.timestamp - 1)
            progress.timestamp = max(progress.timestamp, newest)

    def arrive(self, now: float) -> None:
        """Come to the next rendezvous: after that nothing is pushed until it has ended."""
        self._rendezvous += 1
        self._at_rendezvous = True
        facts = {"number": self._rendezvous}
        for progress in self._progress:
            for one in progress.held:
                self._ask(one, Kind.ARRIVE, progress.timestamp, facts, now)

    def is_dispersed(self) -> bool:
        """Whether all servers have sent the values with which the rendezvous ends."""
        return all(one.final == self._rendezvous for one in self._held.values())

    def take_global(self) -> None:
        """Write the values of the rendezvous into the parameters, in place."""
        self._at_rendezvous = False
        for index, progress in enumerate(self._progress):
            self.pull(index)
            progress.behind = 0

    def missing(self, optimizer: int | None = None) -> str:
        """Whose blocks have not come: of an optimizer, or at the rendezvous."""
        if optimizer is None:
            awaited = [one for one in self._held.values() if one.final != self._rendezvous]
            what = f"the values of rendezvous {self._rendezvous}"
        else:
            progress = self._progress[optimizer]
            awaited = [one for one in progress.held if one.newest <= progress.timestamp]
            what = f"blocks newer than version {progress.timestamp}"
        named = ", ".join(str(rank) for rank in sorted({one.owner for one in awaited}))
        return f"{what} have not come from rank {named}: look at the log of rank {named}"

    def handle(self, received: Received, now: float) -> None:
        """Take a server's BLOCK or FINAL.

        What comes from a rank that does not serve the block any more is passed over: this worker
        has told the successor already what it holds.

        Raises:
            PeerError: the server has waited too long for a worker; names it.

        """
        message = received.message
        held = self._held.get(message.block)
        if held is None or received.sender != held.owner:
            return
        number = message.facts.get("number", 0)
        if "missing" in message.facts:
            self._raise_missing(held, message)
        elif not _fits(message, held.block):
            return
        elif message.kind == Kind.FINAL and self._at_rendezvous and number == self._rendezvous:
            held.take_final(message, self._rendezvous)
        elif message.kind == Kind.BLOCK and not self._at_rendezvous:
            self.counts.late += not held.take_block(message, now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Speak to the successor about the blocks of a rank that is gone."""
        self._gone.add(rank)
        for held in self._held.values():
            owner = held.block.owner(self._gone, self._world_size)
            if owner != held.owner:
                held.move(owner, now)

    def tick(self, now: float) -> None:
        """Put requests again that have not been answered."""
        for held in self._held.values():
            held.tick(now)

    def _begin_pull(self, progress: _Progress) -> None:
        progress.steps += 1
        progress.enough_since = None

    def _ask(
        self,
        held: WorkerBlock,
        kind: Kind,
        timestamp: int,
        facts: Mapping[str, Any],
        now: float,
        payload: Tensor | None = None,
    ) -> None:
        request = Message(kind, held.block.number, timestamp, facts, payload)
        self.counts.unsent += not held.ask(request, now)

    def _raise_missing(self, held: WorkerBlock, message: Message) -> None:
        at_rendezvous = message.kind == Kind.FINAL
        if held.request is None or at_rendezvous != self._at_rendezvous:
            return
        if at_rendezvous and message.facts.get("number") != self._rendezvous:
            return
        named = ", ".join(map(str, message.facts["missing"]))
        what = "at a rendezvous of all ranks" if at_rendezvous else "for gradients"
        raise PeerError(
            f"rank {held.owner} has waited too long {what}, for rank {named}: look at the log of "
            f"rank {named}; ranks that are slow but healthy need a larger timeout"
        )


def _fits(message: Message, block: ParameterBlock) -> bool:
    flat = message.payload
    return flat is not None and (flat.dtype, flat.numel()) == (block.dtype, block.size)


def _gradient(host: HostCopy) -> tuple[Tensor, list[int]]:
    """The gradient of a block, in memory that the transport may keep, and where there is none."""
    flat = host.empty()
    gradients = host.read_gradients(flat)
    return flat, [place for place, gradient in enumerate(gradients) if gradient is None]
