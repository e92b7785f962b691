"""Messages between ranks outside the process group, and their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Any

import torch
from torch import Tensor


class MalformedMessage(ValueError):
    """Frames are not a message of this protocol. The text describes the fault."""


@unique
class Kind(IntEnum):
    """Purpose of a message. The values are sent as one byte."""

    PUSH = 1  # to a server: gradients; it answers with newer values
    ABSTAIN = 2  # to a server: as PUSH, without gradients
    BLOCK = 3  # from a server: the current values
    ARRIVE = 4  # to a server: the sender waits at a rendezvous
    FINAL = 5  # from a server: the values at the end of a rendezvous
    HOLD = 6  # to the successor of a lost server: the sender's copy of the values
    EXPELLED = 7  # from a server: the receiver counts as lost
    CONTRIBUTION = 8  # to the leader of a live-rank collective
    RESULT = 9  # from the leader; ranks that have it forward it to the next leader
    STATE_REQUEST = 10  # to a server, from the rank that saves a checkpoint
    STATE = 11  # from a server: the values and the state of their optimizer
    BYE = 12  # to all servers: the sender leaves at the end of training
    MISSING = 13  # from a server that cannot answer within the time limit
    WAITING = 14  # to all servers: the sender waits in a live-rank collective


# Kinds of traffic in metric names, which are public. Four of them differ from the member names.
TRAFFIC_NAMES = {kind: kind.name.lower() for kind in Kind} | {
    Kind.CONTRIBUTION: "meet",
    Kind.RESULT: "minutes",
    Kind.WAITING: "away",
    Kind.MISSING: "order",
}


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


def missing_report(block: int, timestamp: int, missing: Iterable[int], waiting: str) -> Message:
    """A server's report to a rank whose request it cannot answer within the time limit.

    Args:
        block: block of the request.
        timestamp: timestamp of the request.
        missing: ranks that the server waits for.
        waiting: purpose of the wait, such as "for gradients".

    """
    return Message(Kind.MISSING, block, timestamp, {"missing": sorted(missing), "waiting": waiting})


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
