"""Tables of the storm."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from statistics import median
from typing import Any

import psutil

from benchmarks.elastic.measures import Measures
from benchmarks.reliability.records import versions
from examples.tables import markdown, mean_and_deviation, percent

# Share of the synchronisations of the run without kills that the storm should reach.
GOAL = 0.95


def table(runs: Mapping[str, Measures]) -> str:
    """Results of the runs by their names. The first one is the run without kills."""
    whole = next(iter(runs.values()))
    rows: list[tuple[str, Callable[[Measures], str]]] = [
        ("kills: in a block, in a synchronisation, at the start of a group", _kills),
        ("synchronisations", lambda own: str(own.synchronisations)),
        ("of those without kills", lambda own: percent(synchronised(own, whole))),
        ("steps that count, all groups", lambda own: str(own.steps)),
        ("of those without kills", lambda own: percent(own.steps / whole.steps)),
        ("groups in a synchronisation, mean", lambda own: f"{own.groups:.2f}"),
        ("longest pause of a group that was not killed, s", _pause),
        ("longest time without a step of any group, s", lambda own: f"{own.longest_stop_s:.1f}"),
        ("s from a kill until the group trains, median (largest)", _back),
        ("groups that were not back at the end", lambda own: str(own.not_back)),
        ("processes that ended without a kill", lambda own: str(len(own.exits))),
        ("synchronisations after which models differ", _different),
        ("loss on validation data at the end", lambda own: f"{own.loss:.5f}"),
    ]
    return markdown(
        ["", *runs], [[name, *(cell(own) for own in runs.values())] for name, cell in rows]
    )


def synchronised(own: Measures, whole: Measures) -> float:
    """Share of the synchronisations of the run without kills, in the same time."""
    rate = own.synchronisations / own.seconds
    return rate / (whole.synchronisations / whole.seconds)


def losses(runs: Mapping[str, Measures], seeds: Sequence[Measures]) -> str:
    """A sentence about the losses at the end, and those of runs without kills."""
    found = [own.loss for own in seeds]
    of_runs = ", ".join(f"{own.loss:.5f} ({name})" for name, own in runs.items())
    return (
        f"Loss on validation data at the end: {of_runs}; {len(found)} seeds without kills: "
        f"{mean_and_deviation(found, 5)}, from {min(found):.5f} to {max(found):.5f}."
    )


def problems(whole: Measures, storm: Measures, seeds: Sequence[Measures]) -> list[str]:
    """What is not as it should be."""
    found = []
    share = synchronised(storm, whole)
    if share < GOAL:
        found.append(f"{percent(share)} of the synchronisations, less than {percent(GOAL)}")
    if storm.different:
        found.append(f"the models differ after {storm.different} synchronisations")
    if storm.exits:
        found.append(f"{len(storm.exits)} processes have ended without a kill: {storm.exits}")
    limits = [own.loss for own in seeds]
    if storm.loss > max(limits) + (max(limits) - min(limits)):
        found.append(f"the loss at the end is {storm.loss:.5f}, above that of all seeds")
    return found


def setting(command: str) -> dict[str, Any]:
    """Command, versions, commit and hardware."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    load = "/".join(f"{value:.1f}" for value in psutil.getloadavg())
    return {
        "command": command,
        "commit": commit.stdout.strip(),
        "versions": versions() | {"torchft-nightly": version("torchft-nightly")},
        "hardware": f"{platform.machine()}, {psutil.cpu_count()} cores, load at the start {load}",
    }


def _kills(own: Measures) -> str:
    kinds = ("block", "synchronisation", "start")
    return ", ".join(str(own.kills.get(kind, 0)) for kind in kinds) if own.kills else "-"


def _pause(own: Measures) -> str:
    return "-" if own.longest_pause_s is None else f"{own.longest_pause_s:.1f}"


def _different(own: Measures) -> str:
    return "-" if own.different is None else str(own.different)


def _back(own: Measures) -> str:
    return f"{median(own.back_s):.1f} ({max(own.back_s):.1f})" if own.back_s else "-"
