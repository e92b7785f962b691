"""Algorithm 1 of psp_sgd, worker side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.counts import WorkerCounts
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.psp.round import PushFacts
from lightning_hier.parameter_server.psp.settings import PullRule
from lightning_hier.parameter_server.psp.worker_block import OptimizerProgress, WorkerBlock
from lightning_hier.parameter_server.user_optimizer import Hyperparameters


class Worker:
    """Pushes gradients and takes blocks. It neither waits nor receives, so that tests drive it.

    A worker goes on with the newest timestamp that it has received, and not with one more than its
    own, as printed: a worker that has fallen behind would be late for ever.

    Args:
        blocks: all blocks, with this rank's parameters.
        world_size: number of ranks.
        send: sends a message to a rank; returns False if it could not be sent.
        pull_rule: b and tau_2.
        warming: whether the step of an optimizer from a version waits for all blocks.
        retry_s: shortest time before a request is repeated, in seconds.

    Attributes:
        counts: for logging.
        collectives_done: number of the last live-rank collective that has ended.

    """

    def __init__(
        self,
        blocks: Sequence[ParameterBlock],
        world_size: int,
        send: Callable[[int, Message], bool],
        *,
        pull_rule: PullRule,
        warming: Callable[[int, int], bool] = lambda optimizer, version: False,
        retry_s: float = 2.0,
    ) -> None:
        self.counts = WorkerCounts()
        self.collectives_done = 0
        self._world_size = world_size
        self._rule = pull_rule
        self._warming = warming
        self._gone: set[int] = set()
        self._blocks = {
            block.number: WorkerBlock(block, send, retry_s=retry_s)
            for block in blocks
            if block.size
        }
        optimizers = 1 + max((block.optimizer for block in blocks), default=-1)
        self._progress = [
            OptimizerProgress(
                [one for one in self._blocks.values() if one.block.optimizer == index]
            )
            for index in range(optimizers)
        ]
        self._rendezvous = 0
        self._at_rendezvous = False

    @property
    def behind(self) -> int:
        """Steps that other workers have made and this one has not."""
        return max((progress.behind for progress in self._progress), default=0)

    @property
    def unsent(self) -> int:
        """Gradients that could not be sent before the worker went on."""
        return sum(one.request.dropped for one in self._blocks.values())

    def timestamp(self, optimizer: int) -> int:
        """t of an optimizer: the timestamp of its next push."""
        return self._progress[optimizer].timestamp

    def push(self, optimizer: int, hyperparameters: Hyperparameters, now: float) -> None:
        """Push the gradients in ``.grad`` (line 17), or abstain if one is not finite."""
        progress = self._progress[optimizer]
        pushes: list[tuple[Tensor, list[int]]] = []
        for one in progress.blocks:
            flat = one.host.empty()  # the transport keeps it until it is sent
            gradients = one.host.read_gradients(flat)
            if not all_finite(flat):
                self.abstain(optimizer, now)
                return
            pushes.append((flat, [at for at, own in enumerate(gradients) if own is None]))
        groups = [dict(group) for group in hyperparameters]
        for one, (flat, absent) in zip(progress.blocks, pushes, strict=True):
            facts = PushFacts(
                version=one.timestamp,
                final=one.final,
                collectives_done=self.collectives_done,
                steps=progress.steps,
                hyperparameters=groups,
                absent=absent,
            )
            number, timestamp = one.block.number, progress.timestamp
            push = Message(Kind.PUSH, number, timestamp, vars(facts), flat)
            # Repeated without the gradient: a server that has it must not get it twice, and the
            # round of one that has not does without it.
            repeat = Message(Kind.ABSTAIN, number, timestamp, self._abstain_facts(one))
            one.request.put(one.owner, push, now, repeat=repeat)
        progress.steps += 1
        progress.enough_since = None

    def abstain(self, optimizer: int, now: float) -> None:
        """Respond to all servers without a gradient."""
        progress = self._progress[optimizer]
        for one in progress.blocks:
            facts = self._abstain_facts(one)
            request = Message(Kind.ABSTAIN, one.block.number, progress.timestamp, facts)
            one.request.put(one.owner, request, now)
        progress.steps += 1
        progress.enough_since = None

    def skip(self, optimizer: int) -> None:
        """Skip a step that other workers have made."""
        progress = self._progress[optimizer]
        progress.behind = max(0, progress.behind - 1)
        progress.steps += 1

    def is_pulled(self, optimizer: int, now: float) -> bool:
        """Whether enough blocks have been received for the next gradient (line 15).

        Late requests are repeated.
        """
        self.tick(now)
        progress = self._progress[optimizer]
        blocks = len(progress.blocks)
        pulled = sum(one.newest > progress.timestamp for one in progress.blocks)
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
        """Write received blocks into the parameters, in place, and take the newest timestamp."""
        self._progress[optimizer].pull()

    def arrive(self, now: float) -> None:
        """Arrive at the next rendezvous: the worker pushes nothing until it has ended."""
        self._rendezvous += 1
        self._at_rendezvous = True
        facts = {"number": self._rendezvous}
        for progress in self._progress:
            for one in progress.blocks:
                request = Message(Kind.ARRIVE, one.block.number, progress.timestamp, facts)
                one.request.put(one.owner, request, now)

    def has_global_model(self) -> bool:
        """Whether all servers have sent the values of the rendezvous."""
        return all(one.final == self._rendezvous for one in self._blocks.values())

    def take_global(self) -> None:
        """Write the values of the rendezvous into the parameters, in place."""
        self._at_rendezvous = False
        for progress in self._progress:
            progress.pull()
            progress.behind = 0

    def missing(self, optimizer: int | None = None) -> str:
        """Names the servers of missing blocks: of an optimizer, or at the rendezvous."""
        if optimizer is None:
            awaited = [one for one in self._blocks.values() if one.final != self._rendezvous]
            what = f"the values of rendezvous {self._rendezvous}"
        else:
            progress = self._progress[optimizer]
            awaited = [one for one in progress.blocks if one.newest <= progress.timestamp]
            what = f"blocks newer than version {progress.timestamp}"
        named = ", ".join(str(rank) for rank in sorted({one.owner for one in awaited}))
        return f"{what} have not come from rank {named}: look at the log of rank {named}"

    def handle(self, received: Received, now: float) -> None:
        """Take a BLOCK or FINAL; one of a rank that does not serve the block any more is ignored.

        Raises:
            PeerError: the server has waited too long for a worker; names it.

        """
        message, flat = received.message, received.message.payload
        one = self._blocks.get(message.block)
        if one is None or received.sender != one.owner:
            return
        number = message.facts.get("number", 0)
        if "missing" in message.facts:
            self._raise_missing(one, message)
        elif flat is None or (flat.dtype, flat.numel()) != one.block.form:
            return
        elif message.kind == Kind.FINAL and self._at_rendezvous and number == self._rendezvous:
            one.take_final(message, self._rendezvous)
        elif message.kind == Kind.BLOCK and not self._at_rendezvous:
            self.counts.late += not one.take_block(message, now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Move the blocks of a rank that is gone to their next servers."""
        self._gone.add(rank)
        for one in self._blocks.values():
            owner = one.block.owner(self._gone, self._world_size)
            if owner != one.owner:
                one.move(owner, now)

    def tick(self, now: float) -> None:
        """Send unsent requests, and repeat those whose answers are late."""
        for one in self._blocks.values():
            one.tick(now)

    def _abstain_facts(self, one: WorkerBlock) -> dict[str, int]:
        return {"final": one.final, "collectives_done": self.collectives_done}

    def _raise_missing(self, one: WorkerBlock, message: Message) -> None:
        at_rendezvous = message.kind == Kind.FINAL
        if one.request.message is None or at_rendezvous != self._at_rendezvous:
            return
        if at_rendezvous and message.facts.get("number") != self._rendezvous:
            return
        named = ", ".join(map(str, message.facts["missing"]))
        what = "at a rendezvous of all ranks" if at_rendezvous else "for gradients"
        raise PeerError(
            f"rank {one.owner} has waited too long {what}, for rank {named}: look at the log of "
            f"rank {named}; ranks that are slow but healthy need a larger timeout"
        )
