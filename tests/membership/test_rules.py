"""Settings of elastic groups, their data, and the rules by which all groups decide the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import lightning_hier as lh
from lightning_hier.membership.lighthouse import Entry, Phase, Quorum, newest
from lightning_hier.membership.rules import (
    Progress,
    check_start,
    counts,
    members_of,
    missed,
    missing_groups,
    out_of_order,
)

ADDRESS = "http://lighthouse:29510"


def _entry(group: int, phase: Phase = "block", **values: Any) -> Entry:
    return Entry(group=group, phase=phase, address=f"host:{group}", **values)


def _quorum(*entries: Entry) -> Quorum:
    return Quorum("7.1", 100.0, entries)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lighthouse": "host:29510"}, "lighthouse must be the address"),
        ({"lighthouse": "https://host:29510"}, "without encryption and with a port"),
        ({"lighthouse": "http://host"}, "lighthouse must be the address"),
        ({"lighthouse": "http://host:999999"}, "lighthouse must be the address"),
        ({"group": 3}, "group must be below groups, got group=3 and groups=3"),
        ({"group": -1}, "group must be"),
        ({"groups": 1}, "groups must be a whole number of at least 2, got 1"),
        ({"min_groups": 4}, "min_groups must be at most groups"),
        ({"join_timeout_s": 0.0}, "join_timeout_s must be above 0"),
    ],
)
def test_values_outside_their_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lh.TorchFT(**{"lighthouse": ADDRESS, "group": 0, "groups": 3, **values})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_sync": None}, "block_sync=None can't be combined with membership"),
        ({"warmup_steps": 10}, "warmup_steps=10 can't .* pass warmup_steps=0"),
        ({"block_sync": lh.BMUF(overlap=True)}, "overlap=True in .* below block_size / fragments"),
        ({"block_sync": lh.BMUF(block_size=8, fragments=2, overlap=4)}, "overlap=4 in blocks of"),
        ({"block_sync": lh.BMUF(block_lr=2.0)}, "block_lr=2 .* membership must be at most c=1"),
        ({"timeout": timedelta(seconds=60)}, "timeout must be at least three times join"),
        ({"membership": ADDRESS}, r"membership must be None or TorchFT\(...\)"),
    ],
)
def test_settings_that_cannot_be_combined(settings: dict[str, Any], message: str) -> None:
    own = {"block_sync": lh.BMUF(), "membership": lh.TorchFT(ADDRESS, 0, 3)}
    with pytest.raises(ValueError, match=message):
        lh.HierarchicalStrategy(**{**own, **settings})


def test_every_preset_of_blocks_takes_membership() -> None:
    for kind in (lh.BMUFStrategy, lh.BMUFAdamStrategy, lh.BMUFGTCStrategy, lh.DiLoCoStrategy):
        strategy = kind(membership=lh.TorchFT(ADDRESS, 1, 3))
        assert strategy.warmup_steps == 0
    with pytest.raises(ValueError, match="block_sync=None"):
        lh.GTCStrategy(membership=lh.TorchFT(ADDRESS, 1, 3))


def test_the_run_that_started_first_wins() -> None:
    """A run that was started later never replaces a trained model, however long it trains."""
    trained = _entry(0, begun=10.0, commits=3, last_commit="a")
    ahead = replace(trained, group=1, commits=4, last_commit="b")
    anew = [_entry(group, begun=50.0, commits=9, last_commit="c") for group in (2, 3)]
    assert newest([trained, *anew]) == trained
    assert newest([trained, *anew, ahead]) == ahead
    assert newest([_entry(0), _entry(1)]) is None


def test_members_have_the_same_last_commit_and_joiners_wait() -> None:
    quorum = _quorum(_entry(0, last_commit="a"), _entry(1, last_commit="b"), _entry(2, "join"))
    assert [entry.group for entry in members_of(quorum, "a")] == [0]
    parts = [_entry(group, part=part) for group, part in enumerate("xyx")]
    assert [entry.group for entry in members_of(_quorum(*parts), "")] == [0, 2]
    assert "group 1 must restart: it exchanges y, and groups 0, 2 x. Step the" in out_of_order(
        1, "y", members_of(_quorum(*parts), "")
    )


def test_a_synchronisation_counts_in_all_groups_or_in_none() -> None:
    quorum = _quorum(_entry(0), _entry(1), _entry(2))
    members = list(quorum.entries)
    voting = [_entry(group, "vote", votes_for="7.1") for group in range(3)]

    def decide(*entries: Entry) -> bool:
        return counts(Quorum("8", 101.0, entries), quorum, members)

    assert decide(*voting)
    assert decide(*voting[:2])  # group 2 was lost after the exchange
    assert not decide(*voting[:2], replace(voting[2], votes_for=""))
    # A late group takes over the decision that the others have made without it.
    assert decide(voting[0], _entry(1, commits=1, last_commit="7.1"))
    assert decide(replace(voting[0], votes_for=""), _entry(1, commits=1, last_commit="7.1"))
    assert not decide(voting[0], _entry(1))
    assert not decide(voting[0], replace(voting[1], votes_for="7.9"))  # a vote on the next one
    # Groups that are not members have no vote.
    assert decide(*voting, _entry(3, "join"))


def test_groups_with_incompatible_settings_are_refused() -> None:
    own = _entry(0, "start", settings={"block_size": 4})
    check_start(own, _quorum(own, replace(own, group=1)))
    for other, message in (
        (replace(own, address="elsewhere"), "two jobs take part as group 0"),
        (replace(own, group=1, address="127.0.0.1:5"), "not a loopback address"),
        (replace(own, group=1, settings={"block_size": 8}), "block_size: 4 here, 8 in group 1"),
    ):
        with pytest.raises(ValueError, match=message):
            check_start(own, _quorum(own, other))


def test_missed_synchronisations_are_counted() -> None:
    text = missed(1, Progress(10.0, 2, "a"), _entry(0, begun=10.0, commits=5, last_commit="b"))
    assert "group 1 must restart: it has missed 3 synchronisations of the others" in text


def test_missing_groups_are_named() -> None:
    settings = lh.TorchFT(ADDRESS, 0, 4, min_groups=3)
    text = missing_groups(settings, _quorum(_entry(0), _entry(2)), timedelta(seconds=90))
    assert "only 2 of 4 groups have come to a synchronisation within 90 s" in text
    assert "groups 1, 3 did not" in text
