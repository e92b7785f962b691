"""`lightning-hier measure`: measures links and a step, and writes the results for `plan`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from lightning_hier.cli.measure.job import job
from lightning_hier.cli.measure.module_step import workload_of
from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.planning import Measurement, Processor, Workload
from lightning_hier.planning.probe import copy_speed, measure_links
from lightning_hier.version import __version__

_DESCRIPTION = """\
Measure the links of a cluster and a step of your module, for `lightning-hier plan`.

Start one rank per device, as for training, while the links are otherwise idle:

  torchrun --nnodes 2 --nproc-per-node 4 ... -m lightning_hier measure --config train.yaml

Without a config, only links are measured; with one rank, only a step of the module."""


def run(args: list[str]) -> None:
    """Measure, and print and write the results on rank 0. Every rank must call it.

    Args:
        args: arguments of the command line.

    Raises:
        ValueError: an argument is malformed, or there is nothing to measure.
        PeerError: a rank did not take part within the time limit. The error names it.
        OSError: the file cannot be written.

    """
    arguments = _parser().parse_args(args)
    with job(arguments.accelerator, arguments.timeout_s) as communicators:
        device = communicators.device
        # A group has the ranks of one host.
        hosts, devices = communicators.across.size, communicators.group.size
        if hosts * devices == 1 and not arguments.config:
            raise ValueError(
                "one rank has no links to measure: start several ranks with torchrun or srun, or "
                "measure the step of a module with --config"
            )
        workload = _workload(arguments.config, arguments.steps, device)
        copied = median(gather_json(copy_speed(device), device))
        within, between, socket_rate = measure_links(communicators)
        measured = Measurement(
            hosts=hosts,
            devices=devices,
            within=within,
            between=between,
            processor=_processor(socket_rate, copied, devices, device),
            workload=workload,
            notes={
                "backend": dist.get_backend(),
                "date": datetime.now(timezone.utc).date().isoformat(),
                "versions": f"lightning_hier {__version__}, torch {torch.__version__}",
            },
        )
        if dist.get_rank() == 0:
            _print(measured)
            arguments.out.write_text(measured.to_json())
            print(f"written to {arguments.out}: lightning-hier plan --network {arguments.out}")


def _parser() -> CommandParser:
    parser = CommandParser("measure", _DESCRIPTION)
    add = parser.add_argument
    add("--out", type=Path, default=Path("network.json"), help="written by rank 0 (%(default)s)")
    add("--config", action="append", default=[], help="YAML of the training whose step is measured")
    steps = "steps of the module; the second half counts (%(default)s)"
    add("--steps", type=int, default=20, help=steps)
    limit = "time limit of every wait for a rank (%(default)s)"
    add("--timeout-s", type=float, default=300.0, help=limit)
    add("--accelerator", choices=("auto", "cpu", "gpu"), default="auto")
    return parser


def _workload(configs: Sequence[str], steps: int, device: torch.device) -> Workload | None:
    """The longest step of all ranks, for which synchronous ranks wait. All train at once."""
    if not configs:
        return None
    with raise_everywhere(device):
        try:
            measured = asdict(workload_of(configs, steps, device))
        except Exception as error:  # Of any type: the other ranks must not wait for this one.
            raise ValueError(
                f"the step cannot be measured: {type(error).__name__}: {error}"
            ) from error
    return Workload(**max(gather_json(measured, device), key=lambda values: values["step_s"]))


def _processor(
    socket_rate: float | None, copied: float, devices: int, device: torch.device
) -> Processor:
    """The processor of a host. With GPUs, ranks copy there and do not use sockets."""
    if device.type == "cuda":
        return Processor(copy_bytes_per_second=copied)
    cores = len(os.sched_getaffinity(0))  # those that this process may use
    return Processor(
        cores=cores,
        # Ranks that share a core each get a part of its time.
        copy_bytes_per_second=copied * max(devices / cores, 1.0),
        socket_bytes_per_second=socket_rate,
    )


def _print(measured: Measurement) -> None:
    print(f"{measured.hosts} hosts of {measured.devices} ranks, {measured.notes['backend']}")
    for name, link in ("within a host", measured.within), ("between hosts", measured.between):
        if link is not None:
            print(
                f"{name}: {8e-6 * link.bytes_per_second:,.0f} Mbit/s, latency "
                f"{1e6 * link.latency_s:.0f} µs while all send"
            )
    if (work := measured.workload) is not None:
        print(
            f"{work.name}: {work.parameters:,} parameters, {1e3 * work.step_s:.1f} ms a step, "
            f"optimizer {work.optimizer}"
        )
