"""One measurement: joins the job, times, writes."""

from __future__ import annotations

import platform
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone

import torch

from lightning_hier.algorithms.planning.measurement import Measurement
from lightning_hier.algorithms.planning.workload import Workload
from lightning_hier.cli.columns import aligned
from lightning_hier.cli.measure.job import Job, joined
from lightning_hier.cli.measure.module_step import slowest_of, workload_of
from lightning_hier.cli.measure.readings import copy_speed, link_of, pairs_of, processor_of
from lightning_hier.cli.measure.table import link_lines, readings_table, workload_line
from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.comm.probe import LinkReading, ProbeSettings, measure_links
from lightning_hier.version import __version__


def measure(asked: Namespace) -> None:
    """Measure what was asked for. Every rank of the job must call it.

    Raises:
        ValueError: a bad value, on every rank.

    """
    settings = ProbeSettings(
        sizes=tuple(asked.sizes), repeats=asked.repeats, budget_s=asked.budget_s
    )
    with joined(asked.accelerator, asked.timeout_s) as job:
        if job.communicators is None and not asked.config:
            raise ValueError(
                "one rank has no links to time: start several with torchrun or srun, or name a "
                "training with --config to have its step timed"
            )
        workload = _workload(job, asked.config, asked.steps)
        speed = copy_speed(job)
        readings = measure_links(job.communicators, settings) if job.communicators else []
        found = _measurement(job, readings, workload, speed)
        if job.rank == 0:
            _print(readings, found)
            asked.out.write_text(found.to_json())
            print(f"written to {asked.out}: lightning-hier plan --network {asked.out}")


def _workload(job: Job, configs: Sequence[str], steps: int) -> Workload | None:
    """The slowest rank's step, all ranks training at the same time as they will."""
    if not configs:
        return None
    problem, own = None, None
    try:
        own = asdict(workload_of(configs, steps, job.device))
    except Exception as error:  # whatever it is, the others must not wait for this rank
        problem = f"the step can't be timed: {type(error).__name__}: {error}"
    raise_everywhere(problem, job.device)
    return slowest_of(gather_json(own, job.device))


def _measurement(
    job: Job, readings: Sequence[LinkReading], workload: Workload | None, speed: float
) -> Measurement:
    notes = {
        "backend": job.backend or "none",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "device": torch.cuda.get_device_name(job.device) if job.device.type == "cuda" else "cpu",
        "versions": f"lightning_hier {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    return Measurement(
        hosts=job.hosts,
        devices=job.devices,
        within=link_of(readings, "within"),
        between=link_of(readings, "between"),
        processor=processor_of(readings, speed, job.device),
        workload=workload,
        notes=notes,
    )


def _print(readings: Sequence[LinkReading], found: Measurement) -> None:
    print(f"{found.hosts} hosts of {found.devices} ranks, {found.notes['backend']}")
    if readings:
        print(aligned(readings_table(readings), left=3))
    lines = [
        *link_lines("within a host", found.within, pairs_of(readings, "within")),
        *link_lines("between hosts", found.between, pairs_of(readings, "between")),
    ]
    for line in lines:
        print(line)
    if found.workload is not None:
        print(workload_line(found.workload))
