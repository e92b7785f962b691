"""Rules by which all groups of a quorum decide the same, each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.addresses import is_loopback
from lightning_hier.membership.lighthouse import Entry, Quorum, newest
from lightning_hier.membership.torchft import TorchFT


@dataclass
class Progress:
    """What the global model of a group contains. Its fields are also fields of :class:`Entry`.

    Attributes:
        begun: time at which its run started, as in :class:`Entry`.
        commits: as in :class:`Entry`.
        last_commit: as in :class:`Entry`.

    """

    begun: float = 0.0
    commits: int = 0
    last_commit: str = ""


def members_of(quorum: Quorum, last_commit: str) -> list[Entry]:
    """Groups that exchange in a quorum, in order of their numbers: those with this last commit.

    If they exchange different parts of the model, which no group should, it is those of one part.
    """
    # Groups that start exchange with each other only if none trains. Otherwise they join.
    exchanging = quorum.within("block") or quorum.within("start", "init")
    same = [entry for entry in exchanging if entry.last_commit == last_commit]
    parts = Counter(entry.part for entry in same)
    most = max(parts, key=lambda part: (parts[part], part), default="")
    return [entry for entry in same if entry.part == most]


def servers_of(quorum: Quorum) -> list[Entry]:
    """Groups that serve the newest state in a quorum, in order of their numbers."""
    best = newest(quorum.within("block", "vote", "serve"))
    serving = quorum.within("serve")
    return [entry for entry in serving if best and entry.last_commit == best.last_commit]


def counts(vote: Quorum, quorum: Quorum, members: Sequence[Entry]) -> bool:
    """Whether a synchronisation counts.

    A group that is late sees the groups that have voted without it: they have gone on from the
    synchronisation, or repeat it.

    Args:
        vote: quorum of the vote.
        quorum: quorum of the synchronisation.
        members: groups that have exchanged.

    """
    numbers = {entry.group for entry in members}
    # Groups that join are in the vote as well, and do not decide.
    present = [entry for entry in vote.entries if entry.group in numbers]
    # A member that has gone on from this synchronisation has seen that it counts.
    if any(entry.last_commit == quorum.identifier for entry in present):
        return True
    # A member that was lost after the exchange has no vote. The others have its update.
    return all(entry.votes_for == quorum.identifier for entry in present)


def check_start(own: Entry, quorum: Quorum) -> None:
    """Check that this group suits the others, when it starts.

    Raises:
        ValueError: its number is taken, or it has other settings.

    """
    if own.group in twice_in(quorum):
        raise ValueError(two_jobs(own.group))
    for other in quorum.entries:
        hosts = [entry.address.rpartition(":")[0] for entry in (own, other)]
        if len({is_loopback(host) for host in hosts}) > 1:
            raise ValueError(
                f"group {own.group} is at {own.address}, and group {other.group} at "
                f"{other.address}: pass the address of the Lighthouse on the network to all "
                "groups, not a loopback address"
            )
        differ = different_settings(own, other)
        if differ:
            raise ValueError(
                f"all groups must have the same settings, but they differ in {differ}. Start this "
                f"group with those of group {other.group}, or all groups with new ones"
            )


def different_settings(own: Entry, other: Entry) -> str:
    """Settings in which another group differs from this one, as text; empty if in none."""
    return " | ".join(
        f"{name}: {own.settings.get(name)} here, {value} in group {other.group}"
        for name, value in other.settings.items()
        if own.settings.get(name) != value
    )


def twice_in(quorum: Quorum) -> list[int]:
    """Numbers of the groups of which two processes are in a quorum."""
    processes = Counter(entry.group for entry in quorum.entries)
    return [group for group, number in processes.items() if number > 1]


def two_jobs(group: int) -> str:
    """Message about two jobs with the same number."""
    return (
        f"two jobs take part as group {group}: give every job its own number below groups, as in "
        "TorchFT(..., group=1), and stop the older one if it was replaced"
    )


def missed(group: int, own: Progress, best: Entry) -> str:
    """Message of a group whose model differs from the model of the others."""
    if best.begun != own.begun:
        why = f"group {best.group} belongs to a run that started earlier"
    else:
        number = counted(max(best.commits - own.commits, 1), "synchronisation")
        why = f"it has missed {number} of the others, because it was stopped, slow or cut off"
    return f"group {group} must restart: {why}. It then continues from their model"


def out_of_order(group: int, part: str, members: Sequence[Entry]) -> str:
    """Message of a group that exchanges another part of the model than the others."""
    others = named_groups([entry.group for entry in members])
    return (
        f"group {group} must restart: it exchanges {part}, and {others} {members[0].part}. Step "
        "the optimizers in the same order in all groups. It then continues from their model"
    )


def missing_groups(settings: TorchFT, quorum: Quorum, waited: timedelta) -> str:
    """Message about groups that do not come."""
    missing = absent(settings, quorum)
    return (
        f"min_groups={settings.min_groups}, but only {len(quorum.entries)} of {settings.groups} "
        f"groups have come to a synchronisation within {waited.total_seconds():.0f} s: "
        f"{named_groups(missing)} did not. Start {'them' if len(missing) > 1 else 'it'} again, or "
        "lower min_groups"
    )


def absent(settings: TorchFT, quorum: Quorum) -> list[int]:
    """Numbers of the groups that are not in a quorum."""
    present = {entry.group for entry in quorum.entries}
    return [group for group in range(settings.groups) if group not in present]


def named_groups(groups: Sequence[int]) -> str:
    """Numbers of groups in a message, such as "groups 0, 2"."""
    return f"group{'s' * (len(groups) > 1)} {', '.join(map(str, groups))}"
