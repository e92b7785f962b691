"""The error of a failed collective names the missing ranks, from entries in the store."""

from __future__ import annotations

import pytest

from lightning_hier.comm.progress_record import PeerError, ProgressRecord


class Store:
    """A store without a network."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str, /) -> bytes:
        return self.values[key]


BROKEN = RuntimeError("gloo: Connection closed by peer [127.0.0.1]\nException raised from ...")


def _records(store: Store, ranks: int, number: int = 0) -> list[ProgressRecord]:
    return [ProgressRecord(store, rank, ranks, number=number, grace_s=0.0) for rank in range(ranks)]


def _failing(record: ProgressRecord, place: str = "", ranks: tuple[int, ...] = ()) -> str:
    """Message of the error of a failed collective, at a place or in a step of a group."""
    body = record.at(place) if place else record.explaining(ranks)
    with pytest.raises(PeerError) as raised, body:
        raise BROKEN
    assert raised.value.__cause__ is BROKEN
    return str(raised.value)


def _pass(records: list[ProgressRecord], place: str) -> None:
    for record in records:
        with record.at(place):
            pass


def test_rank_that_was_lost_in_the_collective_is_named() -> None:
    records = _records(Store(), 3)
    with records[1].at("block 1"), records[2].at("block 1"):
        records[2]._record("failed", "")
        message = _failing(records[0], "block 1")
    assert "every rank had reached it: rank 1 was lost on the way" in message


def test_rank_that_failed_for_the_same_reason_is_not_named() -> None:
    """A step of its group has failed, so it does not reach the synchronisation of all ranks."""
    records = _records(Store(), 4)
    _pass(records, "block 1")
    assert "because rank 3 did not" in _failing(records[2], ranks=(2, 3))
    with records[1].at("block 2"):
        assert "block 2 failed because rank 3 did not" in _failing(records[0], "block 2")


def test_entries_of_an_earlier_run_do_not_hide_missing_ranks() -> None:
    """Ranks that failed at different places continue from the highest of their numbers."""
    records = _records(Store(), 3)
    _pass(records, "block 1")
    _pass(records[1:], "block 2")
    for record in records:
        _failing(record, ranks=(0, 1, 2))
    numbers = [record.number for record in records]
    for record in records:
        record.align(numbers)
    assert "because ranks 1, 2 did not take part" in _failing(records[0], "block 1")
    assert "because rank 1 did not take part" in _failing(records[2], ranks=(1, 2))
