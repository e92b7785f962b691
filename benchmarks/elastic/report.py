"""Tables of the results."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import psutil

from benchmarks.elastic.measures import Measures
from benchmarks.reliability.records import versions
from examples.tables import markdown, mean_and_deviation, percent, spread

# Smallest allowed number of synchronisations, relative to the run without kills.
GOAL = 0.95


def table(runs: Mapping[str, Measures]) -> str:
    """Return the results of all runs as Markdown. The first one is the run without kills."""
    whole = next(iter(runs.values()))
    rows: list[tuple[str, Callable[[Measures], str]]] = [
        ("kills: in a block, in a synchronisation, at the start of a group", _kills),
        ("synchronisations", lambda run: str(run.synchronisations)),
        ("of those without kills", lambda run: percent(synchronised(run, whole))),
        ("steps that count, all groups", lambda run: str(run.steps)),
        ("of those without kills", lambda run: percent(run.steps / whole.steps)),
        ("groups in a synchronisation, mean", lambda run: f"{run.groups:.2f}"),
        ("longest pause of a group that was not killed, s", _pause),
        ("longest time without a step of any group, s", lambda run: f"{run.longest_stop_s:.1f}"),
        ("s from a kill until the group trains, median (range)", _back),
        ("groups that were not back at the end", lambda run: str(run.not_back)),
        ("processes that ended without a kill", lambda run: str(len(run.exits))),
        ("synchronisations after which models differ", _different),
        ("loss on validation data at the end", lambda run: f"{run.loss:.5f}"),
    ]
    return markdown(
        ["", *runs], [[name, *(cell(run) for run in runs.values())] for name, cell in rows]
    )


def synchronised(run: Measures, whole: Measures) -> float:
    """Return the rate of synchronisations, relative to that of the run without kills."""
    rate = run.synchronisations / run.seconds
    return rate / (whole.synchronisations / whole.seconds)


def losses(runs: Mapping[str, Measures], seeds: Sequence[Measures]) -> str:
    """Return a sentence on the losses at the end, and those of all seeds without kills."""
    of_seeds = [run.loss for run in seeds]
    of_runs = ", ".join(f"{run.loss:.5f} ({name})" for name, run in runs.items())
    return (
        f"Loss on validation data at the end: {of_runs}; {len(of_seeds)} seeds without kills: "
        f"{mean_and_deviation(of_seeds, 5)}, from {min(of_seeds):.5f} to {max(of_seeds):.5f}."
    )


def problems(whole: Measures, storm: Measures, seeds: Sequence[Measures]) -> list[str]:
    """Return the requirements that are not met."""
    faults = []
    share = synchronised(storm, whole)
    if share < GOAL:
        faults.append(f"{percent(share)} of the synchronisations, less than {percent(GOAL)}")
    if storm.different:
        faults.append(f"the models differ after {storm.different} synchronisations")
    if storm.exits:
        faults.append(f"{len(storm.exits)} processes exited without a kill: {storm.exits}")
    limits = [run.loss for run in seeds]
    if storm.loss > max(limits) + (max(limits) - min(limits)):
        faults.append(f"the loss at the end is {storm.loss:.5f}, above that of all seeds")
    return faults


def setting(command: str) -> dict[str, Any]:
    """Return the command, versions, commit and hardware."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    load = "/".join(f"{value:.1f}" for value in psutil.getloadavg())
    return {
        "command": command,
        "commit": commit.stdout.strip(),
        "versions": versions() | {"torchft": version("torchft")},
        "hardware": f"{platform.machine()}, {psutil.cpu_count()} cores, load at the start {load}",
    }


def _kills(run: Measures) -> str:
    kinds = ("block", "synchronisation", "start")
    return ", ".join(str(run.kills.get(kind, 0)) for kind in kinds) if run.kills else "-"


def _pause(run: Measures) -> str:
    return "-" if run.longest_pause_s is None else f"{run.longest_pause_s:.1f}"


def _different(run: Measures) -> str:
    return "-" if run.different is None else str(run.different)


def _back(run: Measures) -> str:
    return spread(run.back_s, 1) if run.back_s else "-"
