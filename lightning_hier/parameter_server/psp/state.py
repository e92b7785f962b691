"""Copies of the servers' state, for a rank that saves it: STATE_REQUEST and STATE.

A STATE contains the values of a shard and the state of its optimizer. The payload consists of the
bytes of all tensors, starting with the values. The facts contain names, dtypes and shapes of the
other tensors, and state that is not a tensor.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.request_channel import RequestChannel
from lightning_hier.parameter_server.requests import Request, unanswered
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.updater import ParameterStates

_REQUEST_RETRY_S = 5.0
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
# Tensors start at multiples of this number of bytes, which aligns all dtypes.
_ALIGNMENT = 16

_log = logging.getLogger(__name__)


def write_state(values: ServedValues, request: Message) -> Message:
    """Answer to a STATE_REQUEST: copies of the values and of the optimizer state."""
    flat, states = values.snapshot()
    named: defaultdict[tuple[str, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
    plain = []
    for index, state in states.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                named[name, value.dtype].append((index, value))
            elif value is None or isinstance(value, (bool, int, float, str)):
                plain.append([index, name, value])
            else:
                _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    # Grouped by name, to keep the facts small.
    tensors = [
        [name, str(dtype), [[index, list(value.shape)] for index, value in group]]
        for (name, dtype), group in named.items()
    ]
    raw: list[Tensor] = []
    for same in ([flat], *([value for _, value in group] for group in named.values())):
        pieces = [value.reshape(-1).view(torch.uint8) for value in same]
        nbytes = sum(piece.numel() for piece in pieces)
        raw += [*pieces, torch.zeros(-nbytes % _ALIGNMENT, dtype=torch.uint8)]
    facts = {"plain": plain, "tensors": tensors}
    # One copy of all tensors, because a state may be several times as large as the shard.
    return Message(Kind.STATE, request.block, request.timestamp, facts, torch.cat(raw))


def read_state(message: Message, shard: Shard) -> tuple[Tensor, ParameterStates]:
    """Flat values of a shard, and its optimizer state by index of the parameter.

    Raises:
        ValueError: the message is not the state of this shard.

    """
    states: ParameterStates = {}
    try:
        values, rest = _split(message.payload, shard.dtype, shard.size)
        found = list(message.facts["plain"])
        for name, dtype, shapes in message.facts["tensors"]:
            sizes = [torch.Size(shape).numel() for _, shape in shapes]
            flat, rest = _split(rest, _DTYPES[dtype], sum(sizes))
            pieces = zip(shapes, flat.split(sizes), strict=True)
            found += [(index, name, piece.view(shape)) for (index, shape), piece in pieces]
        for index, name, value in found:
            if index not in shard.indices:
                raise ValueError(f"parameter {index} is missing")
            states.setdefault(index, {})[name] = value
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"not the state of shard {shard.number}: {error}") from error
    return values, states


def _split(raw: Tensor, dtype: torch.dtype, numel: int) -> tuple[Tensor, Tensor]:
    """A copy of the first ``numel`` elements of a payload, and the bytes of the other tensors."""
    nbytes = numel * dtype.itemsize
    if not 0 <= nbytes <= raw.numel():
        raise ValueError(f"the payload has fewer than {numel} elements of {dtype}")
    return raw[:nbytes].clone().view(dtype), raw[nbytes + -nbytes % _ALIGNMENT :]


class StateCollector:
    """Requests the state of all shards. Used on any rank.

    Args:
        shards: all shards.
        channel: channel of the main thread.

    """

    def __init__(self, shards: Sequence[Shard], channel: RequestChannel) -> None:
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._number = 0
        self._states: dict[int, tuple[Tensor, ParameterStates]] = {}
        self._requests = {
            number: Request(channel, shard.owner, retry_s=_REQUEST_RETRY_S)
            for number, shard in self._shards.items()
        }

    def request(self, now: float) -> None:
        """Request the current state of all shards."""
        self._number += 1
        self._states.clear()
        for number, request in self._requests.items():
            request.put(Message(Kind.STATE_REQUEST, number, self._number), now)

    def handle(self, received: Received, now: float) -> None:
        """Handle a server's STATE. A malformed one is ignored and requested again."""
        message, number = received.message, received.message.block
        if number not in self._awaited() or message.timestamp != self._number:
            return
        try:
            self._states[number] = read_state(message, self._shards[number])
        except ValueError as error:
            _log.warning("ignored a malformed state of rank %d: %s", received.sender, error)
        else:
            self._requests[number].acknowledge(now)

    def is_complete(self) -> bool:
        """Whether the state of all shards has been received."""
        return not self._awaited()

    def missing(self) -> str:
        """Names the ranks whose state has not been received."""
        return unanswered("the states of shards", self._awaited().values())

    def values(self) -> Mapping[Parameter, Tensor]:
        """Values of all parameters, on the host."""
        values: dict[Parameter, Tensor] = {}
        for number, (flat, _) in self._states.items():
            shard = self._shards[number]
            values.update(zip(shard.parameters, shard.tensors(flat), strict=True))
        return values

    def states(self, optimizer: int) -> ParameterStates:
        """The entry ``state`` of the optimizer's ``state_dict()``."""
        return {
            index: state
            for number, (_, states) in self._states.items()
            if self._shards[number].optimizer == optimizer
            for index, state in sorted(states.items())
        }

    def _awaited(self) -> dict[int, Request]:
        return {
            number: request
            for number, request in self._requests.items()
            if request.message is not None
        }
