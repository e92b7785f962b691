"""Short benchmark: a few ratios that are stable on a busy machine, compared with committed ones.

Each is a ratio of bytes, or of times measured alternately on the same processor. A ratio that has
grown by more than a third is a regression.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import encoding
from benchmarks.performance.added_calls import calls_added
from benchmarks.performance.between import Pair, processor_ratio
from benchmarks.performance.job import Job, Network, goodput_bytes
from benchmarks.performance.rows import run_ranks
from benchmarks.performance.sections import synchronisation_figures
from benchmarks.performance.short_ranks import SENDERS
from benchmarks.performance.work import Work
from examples.tables import markdown

BASELINE = Path(__file__).with_name("baseline.json")

WORST = 4 / 3
"""Largest allowed ratio of a measured ratio to the committed one."""

SMALL = Work(step_s=0.03, features=64, cells=256, layers=2, senones=512)
_RATE = "200mbit"
_NETWORK = "2x2"
_ALLOCATIONS = 5


def measure(*, loopback: bool) -> dict[str, float]:
    """Measure all ratios, by name. On the loopback, those of rate-limited links are left out."""
    # Not every machine has a C compiler.
    os.environ["LIGHTNING_HIER_COMPILE"] = "0"
    network = Network.read(_NETWORK, _RATE, loopback=loopback)
    nbytes = goodput_bytes(network)
    readings = run_ranks(
        network,
        "benchmarks.performance.short_ranks",
        lambda folder: Job(
            work=SMALL, network=network, goodput_bytes=nbytes, folder=folder
        ).encoded(),
    )
    pairs = [Pair(**pair) for reading in readings for pair in reading["between"]]
    ratios = {
        "a step between synchronisations to the bare step": processor_ratio(pairs, SMALL.step_s),
        "Python calls that a step of one rank adds, to Lightning's": calls_added(),
        "encoding 1% of 10 million elements, not compiled, to a copy": _encoding_ratio(),
    }
    if not loopback:
        ratios |= _over_the_link(readings, network)
    return ratios


def _encoding_ratio() -> float:
    """Return the minimum over several allocations, whose addresses change the ratio by a fifth."""
    return min(encoding.measure(10**7, 0.01, repetitions=9).ratio for _ in range(_ALLOCATIONS))


def _over_the_link(readings: Sequence[Mapping[str, Any]], network: Network) -> dict[str, float]:
    """Compute the ratios that need rate-limited links and their counters."""
    firsts = readings[:: network.ranks_per_host]
    sent = {
        f"{name}: models that a host sends in a step": statistics.fmean(
            first["sent_bytes"][name] for first in firsts
        )
        / SMALL.model_bytes
        for name in SENDERS
    }
    synchronisation = synchronisation_figures(
        [reading["synchronisation"] for reading in readings], network, SMALL
    )
    return sent | {
        "a synchronisation, leader, to the wire time": synchronisation["least_ratio"],
        "extra memory of a leader, in models": synchronisation["extra_models"],
    }


def regressions(measured: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """Return the names of ratios that are too large, or have no committed value."""
    return [
        name
        for name, value in measured.items()
        if name not in committed or value > WORST * committed[name]
    ]


def check(*, loopback: bool, rewrite: bool = False, output: Callable[[str], None] = print) -> int:
    """Measure all ratios, and compare them with the committed ones.

    Args:
        loopback: whether all ranks communicate over the loopback, without emulated hosts.
        rewrite: whether the measured ratios replace the committed ones.
        output: prints a text.

    Returns:
        1 if there is a regression, otherwise 0.

    """
    measured = measure(loopback=loopback)
    if rewrite:
        kept = {name: round(value, 4) for name, value in measured.items()}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
    committed = json.loads(BASELINE.read_text())
    worse = regressions(measured, committed)
    rows = [
        (name, f"{value:.3f}", f"{committed.get(name, float('nan')):.3f}",
         "no" if name in worse else "yes")
        for name, value in measured.items()
    ]  # fmt: skip
    output(markdown(("ratio", "measured", "committed", f"within {WORST:.2f} of it"), rows))
    if worse:
        output("regressions: " + "; ".join(worse))
    return 1 if worse else 0
