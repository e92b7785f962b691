"""A block's parameters and optimizer state as messages: STATE_REQUEST and STATE.

One message for the parameters, and one for each name and dtype of the optimizer's state, so that no
message is larger than a block; numbers that are no tensors travel as JSON. A server makes copies
and is free again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.message import Kind, Message
from lightning_hier.parameter_server.psp.block_values import BlockValues
from lightning_hier.parameter_server.psp.plan import ParameterBlock
from lightning_hier.parameter_server.updater import ParameterStates

_log = logging.getLogger(__name__)


@dataclass
class BlockState:
    """State of a block, as far as it has come.

    Attributes:
        request: number of the request that it answers.
        values: of the parameters, flat.
        states: of the optimizer, by index of the parameter in it.

    """

    request: int
    values: Tensor | None = None
    states: ParameterStates = field(default_factory=dict)
    _parts: int | None = None
    _came: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether all messages have come."""
        return self._parts is not None and len(self._came) == self._parts

    def take(self, message: Message, block: ParameterBlock) -> None:
        """Add what a STATE says; those of other requests are passed over.

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
                    self._note(block, index, name, value)
            elif "name" not in facts:
                self.values = payload.clone()
            else:
                shapes = facts["shapes"]
                pieces = payload.split([torch.Size(shape).numel() for _, shape in shapes])
                for (index, shape), piece in zip(shapes, pieces, strict=True):
                    self._note(block, index, facts["name"], piece.clone().view(shape))
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"no part of the state of block {block.number}: {error}") from error
        self._came.add(part)

    def _note(self, block: ParameterBlock, index: int, name: str, value: Any) -> None:
        if index not in block.indices:
            raise ValueError(f"parameter {index} is not in block {block.number}")
        self.states.setdefault(index, {})[name] = value


def write_state(values: BlockValues, request: Message) -> list[Message]:
    """What answers a STATE_REQUEST."""
    parts: list[tuple[dict[str, Any], Tensor | None]] = [({}, values.flat())]
    tensors: defaultdict[tuple[str, torch.dtype], list[tuple[int, Tensor]]] = defaultdict(list)
    plain = []
    for index, name, value in _entries(values.state()):
        if isinstance(value, Tensor):
            tensors[name, value.dtype].append((index, value))
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain.append([index, name, value])
        else:
            _log.warning("state %r of the optimizer is not saved: it is %s", name, type(value))
    parts.append(({"plain": plain}, None))
    for (name, _), entries in tensors.items():
        shapes = [[index, list(value.shape)] for index, value in entries]
        flat = torch.cat([value.reshape(-1) for _, value in entries])
        parts.append(({"name": name, "shapes": shapes}, flat))
    number, counted = values.block.number, len(parts)
    return [
        Message(
            Kind.STATE,
            number,
            request.timestamp,
            {**facts, "part": part, "parts": counted},
            payload,
        )
        for part, (facts, payload) in enumerate(parts)
    ]


def _entries(states: ParameterStates) -> Iterator[tuple[int, str, Any]]:
    for index, state in states.items():
        for name, value in state.items():
            yield index, name, value
