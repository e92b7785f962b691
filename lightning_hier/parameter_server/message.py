"""What ranks say to each other beside the process group: one kind of message for each purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, unique
from typing import Any

from torch import Tensor


class MalformedMessage(ValueError):
    """Frames that are no message of ours; the text says what is wrong with them."""


@unique
class Kind(IntEnum):
    """What a message is for. The numbers are those on the wire and fit a byte."""

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
    ORDER = 13
    WAITING = 14

    @property
    def traffic_name(self) -> str:
        """Kind of traffic in the logs. Three names are older than the members, and public."""
        return _TRAFFIC_NAMES.get(self, self.name.lower())


_TRAFFIC_NAMES = {Kind.CONTRIBUTION: "meet", Kind.RESULT: "minutes", Kind.WAITING: "away"}


@dataclass(frozen=True, eq=False)
class Message:
    """One message, before it is sent or after it has been received.

    Attributes:
        kind: what it is for.
        block: the parameter block that it is about; 0 to 2^32 - 1.
        timestamp: version of the block, or number of a round; a signed 64-bit number.
        facts: small things by name, anything JSON can say, up to ``Limits.facts_bytes``.
        payload: 1-D contiguous tensor in host memory. Once handed to a port to send it is not
            copied, so nobody may change it any more. A received one is a view of the frame that it
            came in, or in memory that the ports use again when no tensor looks at it any more;
            take it as read-only.

    """

    kind: Kind
    block: int = 0
    timestamp: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a message may be, and how much may wait for one peer.

    Attributes:
        payload_bytes: of the tensor of one message, however many parts it travels in.
        facts_bytes: of the facts of one message, as JSON.
        queued_bytes: of payloads that wait to be sent to one peer, and of those that wait to be
            read from it. A single message may be larger.
        queued_messages: that wait to be sent to one peer.

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
