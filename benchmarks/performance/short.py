"""A short form: a few ratios that hold on a busy machine, against those that are committed.

Each is bytes against bytes, or times of the same processor taken in turns. Where a ratio has fallen
back by more than a third, the change made something slower.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import encoding, step_overhead
from benchmarks.performance.between import Pair, processor_ratio
from benchmarks.performance.job import Job, Network, goodput_bytes
from benchmarks.performance.rows import ranks_do
from benchmarks.performance.sections import synchronisation_figures
from benchmarks.performance.short_ranks import SENDERS
from benchmarks.performance.work import Work
from examples.tables import markdown

BASELINE = Path(__file__).with_name("baseline.json")

WORST = 4 / 3
"""A ratio may be this many times the committed one."""

SMALL = Work(step_s=0.03, features=64, cells=256, layers=2, senones=512)
_RATE = "200mbit"
_NETWORK = "2x2"
_PLACES = 5


def measure(*, loopback: bool) -> dict[str, float]:
    """All ratios, by name; on the loopback those that need a shaped link are left out."""
    # Not every machine has a C compiler.
    os.environ["LIGHTNING_HIER_COMPILE"] = "0"
    network = Network.read(_NETWORK, _RATE, loopback=loopback)
    nbytes = goodput_bytes(network)
    readings = ranks_do(
        network,
        "benchmarks.performance.short_ranks",
        lambda folder: Job(
            work=SMALL, network=network, goodput_bytes=nbytes, folder=folder
        ).encoded(),
    )
    pairs = [Pair(**pair) for own in readings for pair in own["between"]]
    ratios = {
        "a step between synchronisations to the bare step": processor_ratio(pairs, SMALL.step_s),
        "Python calls that a step of one rank adds, to Lightning's": step_overhead.calls_added(),
        "encoding 1% of 10 million elements, not compiled, to a copy": _encoding_ratio(),
    }
    if not loopback:
        ratios |= _over_the_link(readings, network)
    return ratios


def _encoding_ratio() -> float:
    """The least of several places in memory, which move it by a fifth either way."""
    return min(encoding.measure(10**7, 0.01, repetitions=9).ratio for _ in range(_PLACES))


def _over_the_link(readings: Sequence[Mapping[str, Any]], network: Network) -> dict[str, float]:
    """What needs links that are shaped, and counters that count only what crosses them."""
    firsts = readings[:: network.ranks_per_host]
    sent = {
        f"{name}: models that a host sends in a step": statistics.fmean(
            own["sent_bytes"][name] for own in firsts
        )
        / SMALL.model_bytes
        for name in SENDERS
    }
    own = synchronisation_figures([row["synchronisation"] for row in readings], network, SMALL)
    return sent | {
        "a synchronisation, leader, to the wire time": own["least_ratio"],
        "extra memory of a leader, in models": own["extra_models"],
    }


def fallen_back(measured: Mapping[str, float], committed: Mapping[str, float]) -> list[str]:
    """The names of ratios that are more than a third above the committed ones, or not committed."""
    return [
        name
        for name, value in measured.items()
        if name not in committed or value > WORST * committed[name]
    ]


def check(*, loopback: bool, rewrite: bool = False, say: Callable[[str], None] = print) -> int:
    """Measure and compare.

    Args:
        loopback: whether there are no emulated hosts.
        rewrite: whether to commit what was measured, instead of comparing.
        say: prints.

    Returns:
        0, or 1 where a ratio has fallen back.

    """
    measured = measure(loopback=loopback)
    if rewrite:
        kept = {name: round(value, 4) for name, value in measured.items()}
        BASELINE.write_text(json.dumps(kept, indent=2) + "\n")
    committed = json.loads(BASELINE.read_text())
    worse = fallen_back(measured, committed)
    rows = [
        (name, f"{value:.3f}", f"{committed.get(name, float('nan')):.3f}",
         "no" if name in worse else "yes")
        for name, value in measured.items()
    ]  # fmt: skip
    say(markdown(("ratio", "measured", "committed", f"within {WORST:.2f} of it"), rows))
    if worse:
        say("fallen back: " + "; ".join(worse))
    return 1 if worse else 0
