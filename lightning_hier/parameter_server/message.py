"""Messages between ranks outside the process group, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Any

import torch
from torch import Tensor


class MalformedMessage(ValueError):
    """Frames are not a message of this protocol. The text describes the fault."""


@unique
class Kind(IntEnum):
    """Purpose of a message. The values are sent as one byte, the names are part of metrics."""

    PUSH = 1  # to a server: gradients; it answers with newer values
    ABSTAIN = 2  # to a server: as PUSH, without gradients
    BLOCK = 3  # from a server: the current values
    ARRIVE = 4  # to a server: the sender waits at a rendezvous
    FINAL = 5  # from a server: the values at the end of a rendezvous
    STATE_REQUEST = 6  # to a server, from the rank that saves a checkpoint
    STATE = 7  # from a server: the values and the state of their optimizer
    WAITING = 8  # to all servers: the sender waits in a collective of all ranks
    FAILED = 9  # to all ranks: the reason why the sender ends


# An empty tensor, so that senders and receivers need no case for a message without one.
NO_PAYLOAD = torch.empty(0, dtype=torch.uint8)


# Without equality, because == of two payloads is a tensor.
@dataclass(frozen=True, eq=False)
class Message:
    """A message.

    Attributes:
        kind: purpose of the message.
        block: number of a shard (PSP-SGD) or of an optimizer (two-stage ASGD), 0 to 2^32 - 1.
        timestamp: version of the values, or number of a collective, of a rendezvous or of a state
            request. A signed 64-bit number.
        facts: small values by name that JSON can represent, up to ``Limits.facts_bytes``.
        payload: 1-D contiguous tensor in host memory. A port sends it without a copy, so it must
            not be changed afterwards. A received payload is read-only: it is a view of a frame, or
            of memory that the ports reuse when no tensor refers to it.

    """

    kind: Kind
    block: int = 0
    timestamp: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: Tensor = NO_PAYLOAD


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the size of a message and of the queue to a peer.

    Attributes:
        payload_bytes: size of the tensor of one message, in all its parts.
        facts_bytes: size of the facts of one message, as JSON.
        queued_bytes: size of queued payloads to one peer, and of unread payloads from it. A single
            message may be larger.
        queued_messages: number of queued messages to one peer.

    """

    payload_bytes: int = 2**40
    facts_bytes: int = 2**20
    queued_bytes: int = 2**28
    queued_messages: int = 1000
