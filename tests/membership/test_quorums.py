"""Quorums of one group, from a Lighthouse whose responses are given by the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.distributed_c10d import Store

import lightning_hier as lh
from lightning_hier.comm.progress_record import PeerError
from lightning_hier.membership import quorums
from lightning_hier.membership.connections import serve_store
from lightning_hier.membership.lighthouse import Entry, Lighthouse, Phase, Quorum
from lightning_hier.membership.quorums import Quorums
from lightning_hier.membership.rules import check_start

# A third of the limit of a group.
THIRD_S = 3.0


class Clock:
    """A clock that only advances in :meth:`wait`."""

    def __init__(self) -> None:
        self.now = 100.0

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(Quorums, "_open", lambda _: None)
    monkeypatch.setattr(quorums, "monotonic", lambda: fake.now)
    monkeypatch.setattr(quorums, "sleep", fake.wait)
    return fake


def _quorums(
    group: int,
    answer: Callable[[Entry, float], Quorum] | None = None,
    *,
    ranks: int = 1,
    log: Callable[[str], None] = print,
) -> Quorums:
    own: Any = SimpleNamespace(
        group=SimpleNamespace(size=ranks, position=0), device=torch.device("cpu")
    )
    settings = lh.TorchFT("http://127.0.0.1:29510", group, 2, min_groups=2)
    limit = timedelta(seconds=3 * THIRD_S)
    result = Quorums(settings, own, limit=limit, log=log, position=lambda: (0, 0), required={})
    result._address = "127.0.0.1:1"
    result._lighthouse = SimpleNamespace(quorum=answer)  # type: ignore[assignment]
    return result


def _ended() -> str:
    """Address of the store of a process that has ended."""
    return f"127.0.0.1:{serve_store('127.0.0.1').port}"


@pytest.mark.usefixtures("clock")
def test_groups_of_different_sizes() -> None:
    own, other = _quorums(0, ranks=2)._entry("start"), _quorums(1, ranks=4)._entry("start")
    with pytest.raises(ValueError, match="differ in ranks: 2 here, 4 in group 1"):
        check_start(own, Quorum("7.1", 100.0, [other]))


def test_a_lighthouse_that_cannot_be_reached_is_logged_at_once() -> None:
    """The error names only the innermost cause of torchft's nested message."""
    lines: list[str] = []
    client = object.__new__(Lighthouse)
    client._address, client._log = "http://host:1", lines.append

    def request(timeout: timedelta) -> None:
        raise RuntimeError("failed to connect: transport error: Connection refused (os error 111)")

    problem = "http://host:1 cannot be reached (Connection refused (os error 111)): start it with"
    with pytest.raises(PeerError, match="check the address and its port") as raised:
        client._until_answered(request, time.monotonic() + 0.6)
    assert problem in str(raised.value)
    assert [problem in line for line in lines] == [True]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("phase", ["start", "block", "join"])
def test_a_former_process_of_a_group_is_ignored(phase: Phase) -> None:
    """The process trained, joined or started. A quorum that still contains it is discarded."""
    asked: list[Entry] = []

    def answer(own: Entry, until: float) -> Quorum:
        asked.append(own)
        own = replace(own, position=[0, 0])  # as JSON represents it
        former = replace(own, phase=phase, address=_ended(), last_commit="6.9")
        others = [former] if len(asked) == 1 else [replace(own, group=1, waited=True)]
        return Quorum(f"7.{len(asked)}", 100.0, [*others, own])

    quorum = _quorums(0, answer).start()
    assert quorum is not None
    assert quorum.identifier == "7.2"
    assert [entry.group for entry in quorum.entries] == [1, 0]


@pytest.mark.usefixtures("clock")
def test_two_jobs_with_one_number() -> None:
    """A job that starts ends with an error at once, a job that already trains after its limit."""
    alive = serve_store("127.0.0.1")

    def answer(own: Entry, until: float) -> Quorum:
        other = replace(own, phase="block", address=f"127.0.0.1:{alive.port}")
        return Quorum("7.1", 100.0, [other, own])

    of_group = _quorums(1, answer)
    with pytest.raises(ValueError, match="two jobs take part as group 1"):
        of_group.start()
    with pytest.raises(PeerError, match="two jobs take part as group 1"):
        of_group.gathered("block")


def test_a_group_that_joins_waits_less_than_its_other_ranks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waits for a quorum, for the offer and for the state each take their whole limit."""
    begun, offers = clock.now, list[Entry]()

    def answer(own: Entry, until: float) -> Quorum:
        if clock.now == begun:  # no group trains yet
            clock.wait(2.0)
            return Quorum("7.1", 98.0, [own])
        clock.now = until
        offers.append(replace(own, group=1, phase="serve" if offers else "block", last_commit="1"))
        return Quorum("7.2", 100.0, [own, offers[-1]])

    def open_store(address: str, timeout: timedelta) -> Store:
        clock.wait(timeout.total_seconds())
        raise RuntimeError("not ready")

    monkeypatch.setattr(quorums, "open_store", open_store)
    with pytest.raises(PeerError, match="group 0 has waited 6 s for the state"):
        _quorums(0, answer).join()
    assert clock.now - begun == pytest.approx(2 * THIRD_S, abs=0.01)
