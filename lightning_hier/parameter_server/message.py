"""Messages between ranks outside of the process group, and their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Any

from torch import Tensor


class MalformedMessage(ValueError):
    """Frames that are not a message of this protocol; the text names the fault."""


@unique
class Kind(IntEnum):
    """Purpose of a message. The numbers are those on the wire, and fit a byte."""

    PUSH = 1
    ABSTAIN = 2
    BLOCK = 3
    ARRIVE = 4
    FINAL = 5
    HOLD = 6
    EXPELLED = 7
    CONTRIBUTION = 8
    RESULT = 9
    STATE_REQUEST = 10
    STATE = 11
    BYE = 12
    MISSING = 13
    WAITING = 14


# Kinds of traffic in metric names, which are public and older than the names of four members.
TRAFFIC_NAMES = {kind: kind.name.lower() for kind in Kind} | {
    Kind.CONTRIBUTION: "meet",
    Kind.RESULT: "minutes",
    Kind.WAITING: "away",
    Kind.MISSING: "order",
}


@dataclass(frozen=True, eq=False)
class Message:
    """A message that is sent or has been received.

    Attributes:
        kind: its purpose.
        block: number of a parameter block; 0 to 2^32 - 1.
        timestamp: version of the block, or number of a round; a signed 64-bit number.
        facts: small values by name, which JSON can represent, up to ``Limits.facts_bytes``.
        payload: 1-D contiguous tensor in host memory. A port sends it without a copy, so it must
            not be changed any more. A received payload is read-only: it is a view of a frame, or of
            memory that the ports reuse when no tensor refers to it.

    """

    kind: Kind
    block: int = 0
    timestamp: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: Tensor | None = None


def missing_report(block: int, timestamp: int, missing: Iterable[int], waiting: str) -> Message:
    """A server's report to a rank whose request it can't answer within the time limit.

    Args:
        block: of the request.
        timestamp: of the request.
        missing: ranks that the server waits for.
        waiting: what it waits for, such as "for gradients".

    """
    return Message(Kind.MISSING, block, timestamp, {"missing": sorted(missing), "waiting": waiting})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the size of a message, and of the queue to one peer.

    Attributes:
        payload_bytes: of the tensor of one message, in all its parts.
        facts_bytes: of the facts of one message, as JSON.
        queued_bytes: of queued payloads to one peer, and of those from it that have not been read.
            A single message may be larger.
        queued_messages: of queued messages to one peer.

    """

    payload_bytes: int = 2**40
    facts_bytes: int = 2**20
    queued_bytes: int = 2**28
    queued_messages: int = 1000

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: one of them is below 1.

        """
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
