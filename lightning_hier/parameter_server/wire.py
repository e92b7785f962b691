"""Messages as frames: a fixed binary header, facts as JSON, and raw bytes of the tensor.

A large payload is sent in several *parts*, each a ZeroMQ message of three frames with its own
header, so that encryption, transfer and decryption of one push overlap and the memory of the parts
is reused. The first part carries the facts.

Header and tensor have the machine's byte order. The magic number differs on a machine with the
other order, so that such a message is refused. Nothing is pickled. Decoding raises
:class:`MalformedMessage` for frames that :func:`encode` cannot have written, and checks sizes
before contents.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_hier.parameter_server.message import Kind, Limits, MalformedMessage, Message

MAGIC = 0x4C485053  # "LHPS"
VERSION = 1
# magic, version, kind, dtype, padding, block, timestamp, sequence, elements, offset in bytes
HEADER = struct.Struct("=IBBBxIqQQQ")
FRAMES = 3
# Measured: with parts of 1 to 4 MiB a push of 90 MB is twice as fast as in one part.
PART_BYTES = 2**21
# Queues count parts, so a very large payload has larger parts and not more of them.
MOST_PARTS = 2**11

# No bool: a byte other than 0 and 1 would be undefined.
_DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.bfloat16,
    8: torch.float32,
    9: torch.float64,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.float8_e4m3fn,
    13: torch.float8_e5m2,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

Frames = tuple[bytes, bytes, memoryview]


@dataclass(frozen=True, eq=False)
class Part:
    """A received part of a message.

    Attributes:
        message: without its payload; the facts are those of the first part.
        sequence: number of the part on its connection.
        dtype: dtype of the payload.
        nbytes: size of the whole payload.
        offset: where in it this part begins, in bytes.
        raw: a view of the received frame.

    """

    message: Message
    sequence: int
    dtype: torch.dtype
    nbytes: int
    offset: int
    raw: memoryview

    def continues(self, other: Part) -> bool:
        """Whether both can be parts of one message."""
        mine, its = self.message, other.message
        return (mine.kind, mine.block, mine.timestamp, self.dtype, self.nbytes) == (
            (its.kind, its.block, its.timestamp, other.dtype, other.nbytes)
        )


def encode(
    message: Message, sequence: int, limits: Limits, part_bytes: int | None = None
) -> list[Frames]:
    """Frames of each part of a message; the last one is a view of the payload's memory.

    Args:
        message: message to send.
        sequence: number of its first part on the connection, counting from 1.
        limits: limits of messages that the peers accept.
        part_bytes: payload bytes in one part. None: the default for other processes.

    Raises:
        ValueError: the peer would refuse the message: its facts are too large, or its payload is of
            a dtype that cannot be sent.
        TypeError: JSON cannot represent the facts.

    """
    facts = json.dumps(message.facts).encode() if message.facts else b""
    if len(facts) > limits.facts_bytes:
        raise ValueError(f"facts must be at most {limits.facts_bytes} bytes, got {len(facts)}")
    payload = message.payload
    # The only check of a payload: metrics of torchmetrics may have any dtype.
    code = _CODES.get(payload.dtype)
    if code is None:
        raise ValueError(f"a payload can't be of {payload.dtype}")
    # Through uint8, since NumPy has no bfloat16.
    raw = payload.detach().view(torch.uint8).numpy().data
    fields = (MAGIC, VERSION, message.kind, code, message.block, message.timestamp)
    parts: list[Frames] = []
    size = part_bytes or bytes_of_part(raw.nbytes)
    # At least one part, because the header and the facts are sent without a payload too.
    for offset in range(0, max(1, raw.nbytes), size):
        header = HEADER.pack(*fields, sequence + len(parts), payload.numel(), offset)
        parts.append((header, b"" if offset else facts, raw[offset : offset + size]))
    return parts


def decode(frames: Sequence[memoryview | bytes], limits: Limits) -> Part:
    """One part of a message.

    Raises:
        MalformedMessage: the frames are malformed, or larger than ``limits``.

    """
    if len(frames) != FRAMES:
        raise MalformedMessage(f"{len(frames)} frames instead of {FRAMES}")
    header, facts, raw = (memoryview(frame) for frame in frames)
    if header.nbytes != HEADER.size:
        raise MalformedMessage(f"a header of {header.nbytes} bytes instead of {HEADER.size}")
    magic, version, kind, code, block, timestamp, sequence, count, offset = HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise MalformedMessage(f"magic {magic:#x} and version {version} of another protocol")
    try:
        known = Kind(kind)
    except ValueError:
        raise MalformedMessage(f"unknown kind {kind}") from None
    dtype, nbytes = _whole_payload(code, count, limits)
    # An empty part of a payload that is not empty would never complete it.
    if offset + raw.nbytes > nbytes or (nbytes and not raw.nbytes):
        raise MalformedMessage(f"{raw.nbytes} bytes at {offset} of a payload of {nbytes}")
    if offset and facts.nbytes:
        raise MalformedMessage(f"facts at {offset} of a payload")
    message = Message(known, block, timestamp, _read_facts(facts, limits))
    return Part(message, sequence, dtype, nbytes, offset, raw)


def bytes_of_part(nbytes: int) -> int:
    """Size of the parts of a payload of ``nbytes`` bytes."""
    return PART_BYTES * max(1, math.ceil(nbytes / (MOST_PARTS * PART_BYTES)))


def _whole_payload(code: int, count: int, limits: Limits) -> tuple[torch.dtype, int]:
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise MalformedMessage(f"unknown dtype {code}")
    nbytes = count * dtype.itemsize
    if nbytes > limits.payload_bytes:
        raise MalformedMessage(f"a payload of {nbytes} bytes, more than {limits.payload_bytes}")
    return dtype, nbytes


def _read_facts(facts: memoryview, limits: Limits) -> Mapping[str, Any]:
    if facts.nbytes > limits.facts_bytes:
        raise MalformedMessage(f"facts of {facts.nbytes} bytes, more than {limits.facts_bytes}")
    if not facts.nbytes:
        return {}
    try:
        value = json.loads(bytes(facts))
    except (ValueError, RecursionError) as error:  # the second one for deeply nested arrays
        raise MalformedMessage(f"facts are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedMessage(f"facts are a {type(value).__name__}, not an object")
    return value
