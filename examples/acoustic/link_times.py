"""Times of steps over slow links, measured between emulated hosts or predicted by the planner.

Emulated hosts are network namespaces, which need root and iproute2. Without them, the planner of
this package predicts times from a step that is measured on one rank.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.hosts import hosts, missing_requirement
from benchmarks.launch import run_module as run_on_hosts
from examples.acoustic.run_system import Result, Settings
from examples.acoustic.step_times import StepTimes, arguments, read
from examples.ranks import run_module
from lightning_hier import planning
from lightning_hier.planning import Link, Network, Processor, Workload

HOSTS = 2
RATES = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}

# Fraction of the rate of a link that is payload (docs/benchmarks.md).
_PAYLOAD = 0.956
# Latency between hosts on one switch, and loopback between two ranks of a host (docs/planning.md).
_BETWEEN_LATENCY_S = 1e-4
_WITHIN = Link(latency_s=5e-5, bytes_per_second=456e6)

_STEP_MODULE = "examples.acoustic.step_times"


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """Times of a step of each system over each link.

    Attributes:
        how: whether times are measured or predicted.
        why: reason for a prediction, otherwise empty.
        seconds: time of a step in seconds, by link and system.

    """

    how: Literal["measured", "predicted"]
    why: str = ""
    seconds: Mapping[str, Mapping[str, float]]

    def seconds_of(self, link: str, result: Result) -> float:
        """Return the time of all steps of a run."""
        return self.run_seconds(link, Settings(**result.settings), result.steps)

    def run_seconds(self, link: str, settings: Settings, steps: int) -> float:
        """Return the time of the first steps of a run. Steps of the warm-up are steps of DDP."""
        step_s = self.seconds[link]
        warmup = min(settings.warmup_steps, steps)
        return warmup * step_s["ddp"] + (steps - warmup) * step_s[settings.system]


def times_over_links(runs: Sequence[Settings], rates: Mapping[str, float] = RATES) -> LinkTimes:
    """Return the times of a step of each run over each link.

    Args:
        runs: settings of the runs, one of which must be DDP.
        rates: rate of each link in bits per second.

    """
    why = missing_requirement()
    if why is None:
        try:
            measured = {link: _measured(runs, rate) for link, rate in rates.items()}
            return LinkTimes(how="measured", seconds=measured)
        except (subprocess.CalledProcessError, RuntimeError, TimeoutError) as error:
            message = str(error) or type(error).__name__
            why = f"the emulated hosts failed: {message.splitlines()[-1]}"
    one_rank = _measured_on_one_rank(runs[0])
    predicted = {
        link: {run.system: predict(run, one_rank, rate) for run in runs}
        for link, rate in rates.items()
    }
    return LinkTimes(how="predicted", why=why, seconds=predicted)


def predict(settings: Settings, one_rank: StepTimes, bits_per_second: float) -> float:
    """Return the time of a step in seconds, predicted by the planner.

    Args:
        settings: settings of a run of ``ddp`` or ``bmuf_groups``.
        one_rank: measured time of a step on one rank, as system ``one_worker``.
        bits_per_second: rate of the link of a host.

    """
    devices = settings.ranks // HOSTS
    cores = len(os.sched_getaffinity(0))
    # The demo may have more ranks than the machine has cores.
    ranks_per_core = max(1.0, settings.ranks / cores)
    work = Workload(
        parameters=one_rank.parameters,
        step_s=ranks_per_core * one_rank.seconds["one_worker"],
        on_cores=True,
    )
    between = Link(latency_s=_BETWEEN_LATENCY_S, bytes_per_second=_PAYLOAD * bits_per_second / 8)
    network = Network(
        hosts=HOSTS,
        devices=devices,
        within=_WITHIN,
        between=between,
        processor=Processor(cores=max(1, min(devices, cores // HOSTS))),
    )
    if settings.system == "ddp":
        return planning.predict("ddp", work, network).step_s
    blocks = planning.Settings(
        block_sync="bmuf", block_size=settings.block_size, group_size=settings.group_size
    )
    return planning.predict("hierarchical", work, network, blocks).step_s


def _measured(runs: Sequence[Settings], bits_per_second: float) -> Mapping[str, float]:
    """Return the time of a step of each system, measured between emulated hosts."""
    rate = f"{bits_per_second:.0f}bit"
    with tempfile.TemporaryDirectory() as folder, hosts(HOSTS, rate) as emulated:
        result = Path(folder) / "steps.json"
        without_warmup = [replace(run, warmup_steps=0) for run in runs]
        run_on_hosts(
            emulated,
            runs[0].ranks // HOSTS,
            _STEP_MODULE,
            arguments(without_warmup, result),
            folder=Path(folder),
            CUDA_VISIBLE_DEVICES="",
            PYTHONWARNINGS="ignore",
        )
        return read(result).seconds


def _measured_on_one_rank(settings: Settings) -> StepTimes:
    """Return the time of a step on one rank."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "steps.json"
        one = replace(settings, system="one_worker", warmup_steps=0)
        run_module(_STEP_MODULE, arguments([one], result), ranks=1)
        return read(result)
