"""Asks all servers for their state, and puts it together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.patience import Patience
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.psp.state_transfer import BlockState
from lightning_hier.parameter_server.updater import ParameterStates

# After so many seconds of silence at least; a server answers what it is sending already once.
_ASK_AGAIN_S = 5.0

_log = logging.getLogger(__name__)


class StateCollector:
    """One request after another for the state of all blocks, by any rank.

    Args:
        blocks: the whole plan.
        world_size: number of ranks.
        send: to a rank's server; False if it could not be sent.

    """

    def __init__(
        self,
        blocks: Sequence[ParameterBlock],
        world_size: int,
        send: Callable[[int, Message], bool],
    ) -> None:
        self._blocks = {block.number: block for block in blocks if block.size}
        self._world_size = world_size
        self._send = send
        self._gone: set[int] = set()
        self._request = 0
        self._found: dict[int, BlockState] = {}
        self._patience = {number: Patience(_ASK_AGAIN_S) for number in self._blocks}

    def ask(self, now: float) -> None:
        """Ask for the state of all blocks as it is now."""
        self._request += 1
        self._found = {number: BlockState(self._request) for number in self._blocks}
        for number in self._blocks:
            self._ask(number, now)

    def handle(self, received: Received, now: float) -> None:
        """Take a server's STATE; one that is none is passed over, and asked for again."""
        block = self._blocks.get(received.message.block)
        if block is None or block.number not in self._found:
            return
        self._patience[block.number].heard(now)
        try:
            self._found[block.number].take(received.message, block)
        except ValueError as error:
            _log.warning("rank %d sent what can't be used: %s", received.sender, error)

    def peer_gone(self, rank: int, now: float) -> None:
        """Ask the successor for the blocks of a rank that is gone."""
        before = {number: self._owner(number) for number in self._blocks}
        self._gone.add(rank)
        for number in self._awaited():
            if self._owner(number) != before[number]:
                # What the lost server has sent of its state may not go with the successor's.
                self._found[number] = BlockState(self._request)
                self._ask(number, now)

    def tick(self, now: float) -> None:
        """Ask again where no answer has come."""
        for number in self._awaited():
            if self._patience[number].asks_again(now):
                self._request_state(number)

    def is_complete(self) -> bool:
        """Whether the state of all blocks has come."""
        return not self._awaited()

    def missing(self) -> str:
        """Whose state has not come."""
        ranks = sorted({self._owner(number) for number in self._awaited()})
        named = ", ".join(map(str, ranks))
        return f"the state of blocks has not come from rank {named}: look at its log"

    def values(self) -> Mapping[Parameter, Tensor]:
        """Values of all parameters of the plan, on the host."""
        values: dict[Parameter, Tensor] = {}
        for number, found in self._found.items():
            block = self._blocks[number]
            if found.values is not None:
                tensors = block.tensors(found.values)
                values.update(zip(block.parameters, tensors, strict=True))
        return values

    def states(self, optimizer: int) -> ParameterStates:
        """The entry ``state`` of the optimizer's ``state_dict()``."""
        return {
            index: state
            for number, found in self._found.items()
            if self._blocks[number].optimizer == optimizer
            for index, state in sorted(found.states.items())
        }

    def _owner(self, number: int) -> int:
        return self._blocks[number].owner(self._gone, self._world_size)

    def _awaited(self) -> list[int]:
        return [number for number, found in self._found.items() if not found.complete]

    def _ask(self, number: int, now: float) -> None:
        self._patience[number].begin(now)
        self._request_state(number)

    def _request_state(self, number: int) -> None:
        self._send(self._owner(number), Message(Kind.STATE_REQUEST, number, self._request))
