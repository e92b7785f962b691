"""A failed collective is explained by who is missing, from notes in the store."""

from __future__ import annotations

import pytest

from lightning_hier.comm.roll_call import PeerError, RollCall


class Notes:
    """The store's behaviour that counts, without a network; `gone` is what a lost host does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False

    def set(self, key: str, value: str, /) -> None:
        self._answer()
        self.values[key] = value.encode()

    def check(self, keys: list[str], /) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def get(self, key: str, /) -> bytes:
        self._answer()
        return self.values[key]

    def _answer(self) -> None:
        if self.gone:
            raise RuntimeError("Broken pipe\nat some line")


BROKEN = RuntimeError("Connection closed by peer [127.0.0.1]\nException raised from ...")


def _calls(notes: Notes, ranks: int, fit: int = 0) -> list[RollCall]:
    return [RollCall(notes, rank, fit=fit, grace_s=0.0) for rank in range(ranks)]


def test_rank_that_has_not_reached_the_synchronisation_is_named() -> None:
    calls = _calls(Notes(), 3)
    for call in calls:
        with call.at("block 1"):
            pass
    with calls[0].at("block 2"), calls[2].at("block 2"):
        error = calls[0].report([0, 1, 2], BROKEN)
    assert isinstance(error, PeerError)
    assert "block 2 failed because rank 1 did not take part" in str(error)
    assert "rank 1 was last seen at block 1" in str(error)
    assert "larger timeout" in str(error)
    assert "Connection closed by peer [127.0.0.1]" in str(error)
    assert "Exception raised" not in str(error)


def test_rank_that_never_came_anywhere_is_named() -> None:
    calls = _calls(Notes(), 4)
    with calls[0].at("block 1"):
        said = str(calls[0].report([0, 2, 3], BROKEN))
    assert "ranks 2, 3 did not take part" in said
    assert "rank 2 has not reached any synchronisation" in said
    assert "rank 1" not in said


def test_ranks_of_the_group_alone_are_asked() -> None:
    calls = _calls(Notes(), 4)
    with calls[0].at("block 1"), calls[1].at("block 1"):
        assert "every rank had reached it" in str(calls[0].report([0, 1], BROKEN))


def test_between_synchronisations_the_silent_rank_is_named() -> None:
    calls = _calls(Notes(), 3)
    for call in calls:
        with call.at("block 1"):
            pass
    calls[1].report([0, 1, 2], BROKEN)
    said = str(calls[0].report([0, 1, 2], BROKEN))
    assert "a step after synchronisation 1 failed because rank 2 did not take part" in said
    assert "rank 2 was last seen at block 1" in said


def test_store_that_does_not_answer_is_rank_zero() -> None:
    notes = Notes()
    call = RollCall(notes, 1, grace_s=0.0)
    with call.at("block 1"):
        notes.gone = True
        said = str(call.report([0, 1], BROKEN))
        assert "rank 0 or its host is gone (Broken pipe)" in said
    with pytest.raises(PeerError, match="block 2 failed.*rank 0"), call.at("block 2"):
        raise AssertionError("must not be reached")


def test_notes_of_an_earlier_fit_do_not_hide_who_is_missing_now() -> None:
    """A second fit in the same processes finds the first one's notes in the store."""
    notes = Notes()
    for call in _calls(notes, 2):
        for block in range(5):
            with call.at(f"block {block}"):
                pass
    first, _ = _calls(notes, 2, fit=1)
    with first.at("block 1"):
        said = str(first.report([0, 1], BROKEN))
    assert "rank 1 did not take part" in said


def test_who_failed_in_an_earlier_fit_does_not_hide_who_is_silent_now() -> None:
    notes = Notes()
    for call in _calls(notes, 3):
        call.report([0, 1, 2], BROKEN)
    first, second, _ = _calls(notes, 3, fit=1)
    second.report([0, 1, 2], BROKEN)
    assert "because rank 2 did not take part" in str(first.report([0, 1, 2], BROKEN))
