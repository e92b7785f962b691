"""The wire format: messages are decoded as they were encoded, and other frames are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.parameter_server.connection import BufferPool, Reassembler
from lightning_hier.parameter_server.message import Kind, Limits, MalformedMessage, Message
from lightning_hier.parameter_server.transport import make_context, server_socket
from lightning_hier.parameter_server.wire import (
    HEADER,
    MAGIC,
    PART_BYTES,
    VERSION,
    decode,
    encode,
)

LIMITS = Limits(payload_bytes=1024, facts_bytes=256)
DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
SMALL_FACTS = st.dictionaries(st.text(max_size=5), JSON, max_size=3).filter(
    lambda facts: len(json.dumps(facts)) <= LIMITS.facts_bytes
)


def _frames(message: Message, sequence: int = 1) -> list[bytes]:
    [part] = encode(message, sequence, LIMITS)
    return [bytes(frame) for frame in part]


def _reassembler() -> Reassembler:
    return Reassembler(BufferPool(4096))


def _read(frames: Sequence[memoryview | bytes]) -> Message:
    message = _reassembler().add(decode(frames, LIMITS))
    assert message is not None
    return message


@given(
    st.sampled_from(list(Kind)),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**63),
    SMALL_FACTS,
    st.tuples(st.sampled_from(DTYPES), st.binary(max_size=512)),
    st.integers(1, 600),
)
def test_decoded_message_equals_the_encoded_one(
    kind: Kind,
    block: int,
    timestamp: int,
    sequence: int,
    facts: dict,
    content: tuple,
    part_bytes: int,
) -> None:
    """A message has one part or several, of any size."""
    dtype, raw = content
    raw = raw[: len(raw) // dtype.itemsize * dtype.itemsize]
    payload = torch.tensor(list(raw), dtype=torch.uint8).view(dtype)
    sent = Message(kind, block, timestamp, facts, payload)
    parts = [decode(frames, LIMITS) for frames in encode(sent, sequence, LIMITS, part_bytes)]
    assert [part.sequence for part in parts] == list(range(sequence, sequence + len(parts)))
    reassembler = _reassembler()
    *unfinished, message = [reassembler.add(part) for part in parts]
    assert unfinished == [None] * (len(parts) - 1) and message is not None
    assert (message.kind, message.block, message.timestamp) == (kind, block, timestamp)
    assert message.facts == facts
    assert message.payload.dtype == payload.dtype and message.payload.dim() == 1
    # Bytes, since a NaN is not equal to itself.
    assert torch.equal(message.payload.view(torch.uint8), payload.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_payload_is_not_copied(dtype: torch.dtype) -> None:
    payload = torch.zeros(96, dtype=torch.uint8).view(dtype)[1:]
    [frames] = encode(Message(Kind.PUSH, payload=payload), 1, LIMITS)
    message = _read(frames)
    assert message.payload.data_ptr() == payload.data_ptr()


def test_unaligned_payload_is_copied_to_aligned_memory() -> None:
    values = torch.arange(5, dtype=torch.float64)
    header, facts, raw = _frames(Message(Kind.PUSH, payload=values))
    message = _read([header, facts, memoryview(b"x" + raw)[1:]])
    assert message.payload.data_ptr() % 8 == 0
    assert torch.equal(message.payload, values)


def test_memory_of_a_message_is_reused_after_its_last_view() -> None:
    memory = BufferPool(kept_bytes=2048)

    def receive(value: int) -> Message:
        payload = torch.full((1000,), value, dtype=torch.uint8)
        parts = encode(Message(Kind.PUSH, payload=payload), 1, LIMITS, 300)
        reassembler = Reassembler(memory)
        message = [reassembler.add(decode(frames, LIMITS)) for frames in parts][-1]
        assert message is not None
        return message

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


def _header(**changed: int) -> bytes:
    fields = {
        "magic": MAGIC,
        "version": VERSION,
        "kind": int(Kind.PUSH),
        "dtype": 8,
        "block": 0,
        "timestamp": 0,
        "sequence": 1,
        "count": 2,
        "offset": 0,
    }
    return HEADER.pack(*(fields | changed).values())


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ([], "0 frames"),
        ([_header(), b""], "2 frames"),
        ([_header(), b"", bytes(8), b""], "4 frames"),
        ([_header()[:-1], b"", bytes(8)], "header of 43 bytes"),
        ([_header() + b"\0", b"", bytes(8)], "header of 45 bytes"),
        ([_header(magic=0x5350484C), b"", bytes(8)], "magic 0x5350484c"),  # the other byte order
        ([_header(version=2), b"", bytes(8)], "version 2"),
        ([_header(kind=0), b"", bytes(8)], "unknown kind 0"),
        ([_header(kind=200), b"", bytes(8)], "unknown kind 200"),
        ([_header(dtype=99), b"", bytes(8)], "unknown dtype 99"),
        ([_header(dtype=0), b"", bytes(8)], "unknown dtype 0"),
        ([_header(count=0), b"", bytes(8)], "8 bytes at 0 of a payload of 0"),
        ([_header(), b"", b""], "0 bytes at 0 of a payload of 8"),
        ([_header(), b"", bytes(12)], "12 bytes at 0 of a payload of 8"),
        ([_header(offset=4), b"", bytes(8)], "8 bytes at 4 of a payload of 8"),
        ([_header(offset=8), b"", b""], "0 bytes at 8 of a payload of 8"),
        ([_header(offset=4), b"{}", bytes(4)], "facts at 4"),
        ([_header(offset=4), b"", bytes(4)], "does not continue a message"),
        ([_header(count=2**62 + 2), b"", bytes(8)], "18446744073709551624 bytes, more than 1024"),
        ([_header(count=300), b"", bytes(1200)], "payload of 1200 bytes, more than 1024"),
        ([_header(), b"{}" + b" " * 300, bytes(8)], "facts of 302 bytes, more than 256"),
        ([_header(), b"{", bytes(8)], "not JSON"),
        ([_header(), b"\xff\xff\xff", bytes(8)], "not JSON"),
        ([_header(), b"[1]", bytes(8)], "facts are a list"),
    ],
)
def test_malformed(frames: list[bytes], fault: str) -> None:
    with pytest.raises(MalformedMessage, match=fault):
        _reassembler().add(decode(frames, LIMITS))


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Message(Kind.PUSH, payload=torch.zeros(4, dtype=torch.bool)), "torch.bool"),
        (Message(Kind.PUSH, facts={"a": "x" * 300}), "facts must be at most 256"),
    ],
)
def test_message_that_a_peer_would_refuse_is_not_encoded(message: Message, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        encode(message, 1, LIMITS)


def test_payload_of_more_than_4_gib_is_sent_in_parts(tmp_path: Path) -> None:
    """A socket accepts their number and size. The memory of the payload is never read."""
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**33 + 40)
    payload = torch.from_file(file.name, shared=True, size=2**31 + 10)
    context = make_context(1)
    with server_socket(context, Limits()) as socket:
        for count, size in ((2**30, PART_BYTES), (2**31 + 10, 3 * PART_BYTES)):
            parts = encode(Message(Kind.PUSH, payload=payload[:count]), 1, Limits())
            assert {part[2].nbytes for part in parts[:-1]} == {size}
            assert len(parts) < socket.sndhwm and size < socket.maxmsgsize
            last = decode(parts[-1], Limits())
            assert last.sequence == len(parts)
            assert last.nbytes == 4 * count == last.offset + last.raw.nbytes
    context.term()
