"""The time of a step over slow links: measured between emulated hosts, or else predicted.

Emulated hosts are network namespaces, which need root and iproute2. Where they are missing, the
planner of this package predicts the time from a step that is measured on one rank.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.hosts import hosts, missing_means
from benchmarks.launch import run_module as run_on_hosts
from examples.acoustic.run_system import Result, Settings
from examples.acoustic.step_times import StepTimes, arguments, read
from examples.acoustic.systems import ALL
from examples.torchrun import run_module
from lightning_hier import GTC, planning
from lightning_hier.planning import Link, Network, Processor, Workload

HOSTS = 2
RATES = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}

# Share of a link's rate that carries payload (docs/benchmarks.md).
_PAYLOAD = 0.956
# Between hosts on one switch, and between two ranks of a host over the loopback (docs/planning.md).
_BETWEEN_LATENCY_S = 1e-4
_WITHIN = Link(latency_s=5e-5, bytes_per_second=456e6)

_STEP_MODULE = "examples.acoustic.step_times"


@dataclass(frozen=True, kw_only=True)
class LinkTimes:
    """Seconds of a step of each system over each link.

    Attributes:
        how: whether they were measured or predicted.
        why: of predicted ones, what the machine lacks to measure them.
        seconds: by the name of the link, then by the name of the system.

    """

    how: Literal["measured", "predicted"]
    why: str = ""
    seconds: Mapping[str, Mapping[str, float]]

    def seconds_of(self, link: str, result: Result) -> float:
        """Seconds of all steps of a run."""
        return self.run_seconds(link, Settings(**result.settings), result.steps)

    def run_seconds(self, link: str, settings: Settings, steps: int) -> float:
        """Seconds of the first steps of a run; those of its warm-up are steps of DDP."""
        own = self.seconds[link]
        warmup = min(settings.warmup_steps, steps)
        return warmup * own["ddp"] + (steps - warmup) * own[settings.system]


def times_over_links(runs: Sequence[Settings], rates: Mapping[str, float] = RATES) -> LinkTimes:
    """Seconds of a step of each run over links of these rates; DDP must be among the runs."""
    why = missing_means()
    if why is None:
        try:
            found = {link: _measured(runs, rate) for link, rate in rates.items()}
            return LinkTimes(how="measured", seconds=found)
        except (subprocess.CalledProcessError, RuntimeError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            why = f"the emulated hosts failed: {said.splitlines()[-1]}"
    alone = _alone(runs[0])
    predicted = {
        link: {run.system: predict(run, alone, rate) for run in runs}
        for link, rate in rates.items()
    }
    return LinkTimes(how="predicted", why=why, seconds=predicted)


def predict(settings: Settings, alone: StepTimes, bits_per_second: float) -> float:
    """Seconds of a step of a run by the planner.

    Args:
        settings: of the run.
        alone: the step of one rank by itself, as ``one_worker``.
        bits_per_second: of the link of a host.

    """
    devices = settings.ranks // HOSTS
    cores = len(os.sched_getaffinity(0))
    # The ranks of the demo may be more than the cores.
    busy = max(1.0, settings.ranks / cores)
    work = Workload(
        parameters=alone.parameters,
        step_s=busy * alone.seconds["one_worker"],
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
    system = ALL[settings.system]
    if system.block_sync is None:
        return planning.predict("ddp", work, network).step_s
    compressed = system.gradient_sync and isinstance(system.gradient_sync(settings.density), GTC)
    # The planner does not model an averaged momentum. Adam's two moments cost more than it.
    averages_state = system.block_sync(1).averages_state
    blocks = planning.Settings(
        block_sync="bmuf_adam" if averages_state else "bmuf",
        block_size=settings.block_size,
        group_size=settings.group_size,
        density=settings.density if compressed else None,
    )
    return planning.predict("hierarchical", work, network, blocks).step_s


def _measured(runs: Sequence[Settings], bits_per_second: float) -> Mapping[str, float]:
    """Seconds of a step of each system between emulated hosts."""
    with tempfile.TemporaryDirectory() as folder, hosts(HOSTS, f"{bits_per_second:.0f}bit") as own:
        result = Path(folder) / "steps.json"
        without_warmup = [replace(run, warmup_steps=0) for run in runs]
        run_on_hosts(
            own,
            runs[0].ranks // HOSTS,
            _STEP_MODULE,
            arguments(without_warmup, result),
            folder=Path(folder),
            CUDA_VISIBLE_DEVICES="",
            PYTHONWARNINGS="ignore",
        )
        return read(result).seconds


def _alone(settings: Settings) -> StepTimes:
    """A step of one rank by itself."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "steps.json"
        one = replace(settings, system="one_worker", warmup_steps=0)
        run_module(_STEP_MODULE, arguments([one], result), ranks=1)
        return read(result)
