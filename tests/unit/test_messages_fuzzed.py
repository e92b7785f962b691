"""The decoder reads arbitrary frames, or raises MalformedMessage and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_hier.parameter_server.connection import BufferPool, Reassembler
from lightning_hier.parameter_server.message import Kind, Limits, MalformedMessage, Message
from lightning_hier.parameter_server.wire import HEADER, MAGIC, VERSION, decode, encode
from tests.unit.test_messages import JSON, LIMITS


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
