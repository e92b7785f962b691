"""Requests the state of all blocks from their servers, and assembles it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.requests import PendingRequest
from lightning_hier.parameter_server.updater import ParameterStates

_RETRY_S = 5.0

_log = logging.getLogger(__name__)


@dataclass
class BlockState:
    """Received state of a block.

    Attributes:
        request: number of the request.
        values: of the parameters, flat.
        states: of the optimizer, by index of the parameter in it.

    """

    request: int
    values: Tensor | None = None
    states: ParameterStates = field(default_factory=dict)
    _parts: int | None = None
    _received: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether all messages have been received."""
        return self._parts is not None and len(self._received) == self._parts

    def take(self, message: Message, block: ParameterBlock) -> None:
        """Add a STATE; those of other requests are ignored.

        Raises:
            ValueError: the message is no part of a block's state.

        """
        facts, payload = message.facts, message.payload
        if message.timestamp != self.request:
            return
        try:
            part, self._parts = int(facts["part"]), int(facts["parts"])
            if payload is None:
                for index, name, value in facts["plain"]:
                    self._add(block, index, name, value)
            elif "name" not in facts:
                self.values = payload.clone()
            else:
                shapes = facts["shapes"]
                pieces = payload.split([torch.Size(shape).numel() for _, shape in shapes])
                for (index, shape), piece in zip(shapes, pieces, strict=True):
                    self._add(block, index, facts["name"], piece.clone().view(shape))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"no part of the state of block {block.number}: {error}") from error
        self._received.add(part)

    def _add(self, block: ParameterBlock, index: int, name: str, value: Any) -> None:
        if index not in block.indices:
            raise ValueError(f"parameter {index} is not in block {block.number}")
        self.states.setdefault(index, {})[name] = value


class StateCollector:
    """Requests the state of all blocks, on any rank.

    Args:
        blocks: all blocks.
        world_size: number of ranks.
        send: sends a message to a rank; returns False if it could not be sent.

    """

    def __init__(
        self,
        blocks: Sequence[ParameterBlock],
        world_size: int,
        send: Callable[[int, Message], bool],
    ) -> None:
        self._blocks = {block.number: block for block in blocks if block.size}
        self._world_size = world_size
        self._gone: set[int] = set()
        self._number = 0
        self._states: dict[int, BlockState] = {}
        self._requests = {number: PendingRequest(send, retry_s=_RETRY_S) for number in self._blocks}

    def request(self, now: float) -> None:
        """Request the current state of all blocks."""
        self._number += 1
        for number in self._blocks:
            self._states[number] = BlockState(self._number)
            request = Message(Kind.STATE_REQUEST, number, self._number)
            self._requests[number].put(self._owner(number), request, now)

    def handle(self, received: Received, now: float) -> None:
        """Take a server's STATE; a malformed one is ignored and requested again."""
        block = self._blocks.get(received.message.block)
        if block is None or block.number not in self._states:
            return
        state, request = self._states[block.number], self._requests[block.number]
        request.defer(now)
        try:
            state.take(received.message, block)
        except ValueError as error:
            _log.warning("rank %d sent what can't be used: %s", received.sender, error)
        if state.complete:
            request.acknowledge(now)

    def peer_gone(self, rank: int, now: float) -> None:
        """Request the unfinished blocks of a rank that is gone from their next servers."""
        before = {number: self._owner(number) for number in self._blocks}
        self._gone.add(rank)
        for number in self._awaited():
            if self._owner(number) != before[number]:
                # The state that the lost server has sent in part may differ from its successor's.
                self._states[number] = BlockState(self._number)
                self._requests[number].redirect(self._owner(number), now)

    def tick(self, now: float) -> None:
        """Send unsent requests, and repeat those whose answers are late."""
        for request in self._requests.values():
            request.tick(now)

    def is_complete(self) -> bool:
        """Whether the state of all blocks has been received."""
        return not self._awaited()

    def missing(self) -> str:
        """Names the ranks whose state has not been received."""
        ranks = sorted({self._owner(number) for number in self._awaited()})
        named = ", ".join(map(str, ranks))
        return f"the state of blocks has not come from rank {named}: look at its log"

    def values(self) -> Mapping[Parameter, Tensor]:
        """Values of all parameters, on the host."""
        values: dict[Parameter, Tensor] = {}
        for number, state in self._states.items():
            block = self._blocks[number]
            if state.values is not None:
                tensors = block.tensors(state.values)
                values.update(zip(block.parameters, tensors, strict=True))
        return values

    def states(self, optimizer: int) -> ParameterStates:
        """The entry ``state`` of the optimizer's ``state_dict()``."""
        return {
            index: one
            for number, state in self._states.items()
            if self._blocks[number].optimizer == optimizer
            for index, one in sorted(state.states.items())
        }

    def _owner(self, number: int) -> int:
        return self._blocks[number].owner(self._gone, self._world_size)

    def _awaited(self) -> list[int]:
        return [number for number, state in self._states.items() if not state.complete]
