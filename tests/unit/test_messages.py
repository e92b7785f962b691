"""The wire format: messages are decoded as they were encoded, and other frames are refused.

Also for arbitrary frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
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


def _accepts_or_refuses(*several: Sequence[bytes]) -> None:
    """Decode parts. Check their messages, and that only MalformedMessage is raised."""
    reassembler = Reassembler(BufferPool(4096))
    for frames in several:
        try:
            part = decode(frames, LIMITS)
            assert part.offset + len(frames[2]) <= part.nbytes <= LIMITS.payload_bytes
            reassembler.cut_by(part)
            message = reassembler.add(part)
        except MalformedMessage:
            continue
        assert isinstance(part.message.kind, Kind) and isinstance(part.message.facts, dict)
        if message is not None:
            size = message.payload.nbytes
            assert size == part.nbytes


_NUMBER = st.one_of(st.integers(0, 16), st.integers(0, 255))


@settings(max_examples=500)
@given(
    st.sampled_from([MAGIC, MAGIC, MAGIC, 0]),
    st.sampled_from([VERSION, VERSION, VERSION, 0, 255]),
    _NUMBER,
    _NUMBER,
    st.sampled_from([0, 1, 3, 8, 2**63, 2**64 - 1]),
    st.sampled_from([0, 0, 0, 1, 4, 8, 2**63, 2**64 - 1]),
    st.one_of(st.just(b""), st.binary(max_size=64), JSON.map(lambda v: json.dumps(v).encode())),
    st.binary(max_size=32),
)
@example(MAGIC, VERSION, 1, 0, 0, 0, b"[" * 250, b"")
@example(MAGIC, VERSION, 1, 0, 0, 0, b'{"a": 1' + b"0" * 240 + b"}", b"")
@example(MAGIC, VERSION, 1, 0, 0, 0, b'"\xff\xfe"', b"")
@example(MAGIC, VERSION, 1, 8, 2**62, 0, b"", b"")  # 2^64 bytes, more than 64 bits can hold
def test_arbitrary_header(
    magic: int,
    version: int,
    kind: int,
    code: int,
    count: int,
    offset: int,
    facts: bytes,
    payload: bytes,
) -> None:
    header = HEADER.pack(magic, version, kind, code, 0, 0, 1, count, offset)
    _accepts_or_refuses([header, facts, payload])


@settings(max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([Kind.PUSH, Kind.PUSH, Kind.BLOCK]),
            st.sampled_from([12, 12, 6]),
            st.sampled_from([0, 0, 4, 8]),
            st.sampled_from([4, 4, 8, 12]),
        ),
        max_size=8,
    )
)
def test_parts_in_any_order(several: list[tuple[Kind, int, int, int]]) -> None:
    """A message is complete exactly if its parts arrived one after the other."""
    expected, filled, under_way = 0, 0, None
    reassembler, complete = Reassembler(BufferPool(4096)), 0
    for kind, count, offset, size in several:
        frames = [HEADER.pack(MAGIC, VERSION, kind, 1, 0, 0, 1, count, offset), b"", bytes(size)]
        try:
            complete += reassembler.add(decode(frames, LIMITS)) is not None
        except MalformedMessage:
            pass
        if offset + size > count:  # the decoder refuses it
            continue
        if offset and (under_way != (kind, count) or offset != filled):
            under_way = None
            continue
        under_way, filled = (kind, count), offset + size
        if filled == count:
            expected, under_way = expected + 1, None
    assert complete == expected


def test_deeply_nested_facts_are_refused() -> None:
    """The JSON parser raises another exception for them than for invalid JSON."""
    limits = Limits(facts_bytes=10**6)
    [(header, _, payload)] = encode(Message(Kind.PUSH), 1, LIMITS)
    with pytest.raises(MalformedMessage, match="not JSON"):
        decode([header, b"[" * 200_000, payload], limits)
