"""Messages as frames: they are decoded as they were encoded, and arbitrary frames are refused."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_hier.parameter_server.message import (
    Assembler,
    BufferPool,
    Kind,
    MalformedMessage,
    Message,
    encode,
)

DTYPES = [
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=3,
)


def _read(message: Message, part_bytes: int = 2**21, memory: BufferPool | None = None) -> Message:
    """A message after it has been sent."""
    header, (first, *others) = encode(message, part_bytes)
    assembler = Assembler(memory or BufferPool(4096))
    read = [assembler.add([memoryview(header), first]), *(assembler.add([o]) for o in others)]
    assert read[:-1] == [None] * len(others)
    assert read[-1] is not None
    return read[-1]


@given(
    st.sampled_from(list(Kind)),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    st.tuples(st.sampled_from(DTYPES), st.binary(max_size=512)),
    st.integers(1, 600),
)
def test_decoded_message_equals_the_encoded_one(
    kind: Kind,
    block: int,
    timestamp: int,
    facts: dict[str, object],
    content: tuple[torch.dtype, bytes],
    part_bytes: int,
) -> None:
    dtype, raw = content
    whole = bytearray(raw[: len(raw) // dtype.itemsize * dtype.itemsize])
    payload = torch.frombuffer(whole, dtype=dtype) if whole else torch.empty(0, dtype=dtype)
    message = _read(Message(kind, block, timestamp, facts, payload), part_bytes)
    assert (message.kind, message.block, message.timestamp) == (kind, block, timestamp)
    assert message.facts == facts
    assert message.payload.dtype == payload.dtype and message.payload.dim() == 1
    # Bytes, since a NaN is not equal to itself.
    assert torch.equal(message.payload.view(torch.uint8), payload.view(torch.uint8))


def test_unaligned_payload_is_copied_to_aligned_memory() -> None:
    values = torch.arange(5, dtype=torch.float64)
    header, [raw] = encode(Message(Kind.PUSH, payload=values))
    moved = memoryview(b"x" + bytes(raw))[1:]
    message = Assembler(BufferPool()).add([memoryview(header), moved])
    assert message is not None
    assert message.payload.data_ptr() % 8 == 0
    assert torch.equal(message.payload, values)


def test_memory_of_a_message_is_reused_after_its_last_view() -> None:
    memory = BufferPool(kept_bytes=2048)

    def receive(value: int) -> Message:
        payload = torch.full((1000,), value, dtype=torch.uint8)
        return _read(Message(Kind.PUSH, payload=payload), 300, memory)

    first = receive(1)
    place, view = first.payload.data_ptr(), first.payload[10:20]
    del first
    second = receive(2)  # a view of the first message still exists
    assert second.payload.data_ptr() != place
    assert view.tolist() == [1] * 10
    del view
    third = receive(3)
    assert third.payload.data_ptr() == place
    assert third.payload.tolist() == [3] * 1000 and second.payload.tolist() == [2] * 1000


_HEADER = st.one_of(
    st.binary(max_size=64),
    st.lists(JSON, max_size=6).map(lambda v: json.dumps(v).encode()),
    st.integers(0, 12).map(lambda nbytes: b'[1, 0, 0, {}, "float32", %d]' % nbytes),
)


@given(st.lists(st.lists(_HEADER | st.binary(max_size=9), max_size=3), max_size=4))
@example([[b'[0, 0, 0, {}, "float32", 0]', b""]])
@example([[b'[1, 0, 0, {}, "load", 0]', b""]])
@example([[b'[1, 0, 0, [1], "float32", 0]', b""]])
@example([[b'[1, 0, 0, {}, "float32", -4]', b""]])
@example([[b"[1, 0, 0, " + b"[" * 200_000, b""]])  # another exception of the parser
def test_other_frames_are_malformed(several: list[list[bytes]]) -> None:
    assembler = Assembler(BufferPool(4096))
    for frames in several:
        try:
            message = assembler.add([memoryview(frame) for frame in frames])
        except MalformedMessage:
            continue
        assert message is None or isinstance(message.kind, Kind)


def test_message_after_a_malformed_one_is_read() -> None:
    header, (first, *_) = encode(Message(Kind.PUSH, payload=torch.ones(4)), 8)
    assembler = Assembler(BufferPool())
    assert assembler.add([memoryview(header), first]) is None
    with pytest.raises(MalformedMessage, match="9 bytes at 8 of 16"):
        assembler.add([memoryview(bytes(9))])
    header, [whole] = encode(Message(Kind.PUSH, payload=torch.ones(4)))
    message = assembler.add([memoryview(header), whole])
    assert message is not None and message.payload.tolist() == [1.0] * 4
