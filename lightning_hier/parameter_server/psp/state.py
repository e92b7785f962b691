"""Copies of the servers' state, for a rank that saves it: STATE_REQUEST and STATE.

A STATE contains the values of a shard and the state of its optimizer. The payload consists of the
bytes of all tensors, starting with the values. The facts contain index, name, dtype and shape of
the other tensors, and state that is not a tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.engine import Snapshot
from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.ports import Received
from lightning_hier.parameter_server.psp.shards import Shard
from lightning_hier.parameter_server.request_channel import RequestChannel, unanswered
from lightning_hier.parameter_server.served_values import ServedValues
from lightning_hier.parameter_server.updater import ParameterStates

# Tensors start at multiples of this number of bytes, which aligns all dtypes.
_ALIGNMENT = 16

_log = logging.getLogger(__name__)


def write_state(values: ServedValues, request: Message) -> Message:
    """Answer to a STATE_REQUEST: copies of the values and of the optimizer state."""
    flat, states = values.snapshot()
    pieces, tensors, plain = _padded(flat), [], []
    for index, state in states.items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                tensors.append([index, name, dtype, list(value.shape)])
                pieces += _padded(value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                plain.append([index, name, value])
            else:
                _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    facts = {"plain": plain, "tensors": tensors}
    # One copy of all tensors, because a state may be several times as large as the shard.
    return Message(Kind.STATE, request.block, request.timestamp, facts, torch.cat(pieces))


def read_state(message: Message, shard: Shard) -> tuple[Tensor, ParameterStates]:
    """Copies of the flat values of a shard, and of its optimizer state by parameter index."""
    values, at = _read(message.payload, 0, shard.dtype, [shard.size])
    states: ParameterStates = {}
    for index, name, dtype, shape in message.facts["tensors"]:
        value, at = _read(message.payload, at, getattr(torch, dtype), shape)
        states.setdefault(index, {})[name] = value
    for index, name, plain in message.facts["plain"]:
        states.setdefault(index, {})[name] = plain
    return values, states


def _padded(tensor: Tensor) -> list[Tensor]:
    # As bytes, because the tensors of one message have different dtypes.
    raw = tensor.reshape(-1).view(torch.uint8)
    return [raw, torch.zeros(-raw.numel() % _ALIGNMENT, dtype=torch.uint8)]


def _read(raw: Tensor, at: int, dtype: torch.dtype, shape: Sequence[int]) -> tuple[Tensor, int]:
    """A copy of the tensor that starts at a byte, and the start of the next one."""
    end = at + torch.Size(shape).numel() * dtype.itemsize
    return raw[at:end].clone().view(dtype).view(shape), end + -end % _ALIGNMENT


class StateCollector:
    """Requests the state of all shards. Used on any rank.

    Args:
        shards: all shards.
        channel: channel of the main thread.

    """

    def __init__(self, shards: Sequence[Shard], channel: RequestChannel) -> None:
        self._shards = {shard.number: shard for shard in shards if shard.size}
        self._channel = channel
        self._states: dict[int, tuple[Tensor, ParameterStates]] = {}

    def request(self) -> None:
        """Request the current state of all shards."""
        self._states.clear()
        for number, shard in self._shards.items():
            self._channel.send(shard.home, Message(Kind.STATE_REQUEST, number))

    def handle(self, received: Received, now: float) -> None:
        """Handle a server's STATE."""
        block = received.message.block
        self._states[block] = read_state(received.message, self._shards[block])

    def is_complete(self, now: float) -> bool:
        """Whether the state of all shards has been received."""
        return self._states.keys() == self._shards.keys()

    def missing(self) -> str:
        """Names the ranks whose state has not been received."""
        missing = self._shards.keys() - self._states.keys()
        return unanswered("the states of shards", [self._shards[n].home for n in missing])

    def snapshot(self, optimizers: int) -> Snapshot:
        """The received state of all shards, of this number of optimizers."""
        values: dict[Parameter, Tensor] = {}
        states: list[dict[int, Any]] = [{} for _ in range(optimizers)]
        for number, (flat, optimizer_state) in self._states.items():
            shard = self._shards[number]
            values.update(zip(shard.parameters, shard.tensors(flat), strict=True))
            states[shard.optimizer].update(optimizer_state)
        return Snapshot(values, states)
