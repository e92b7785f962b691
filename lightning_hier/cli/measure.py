"""`lightning-hier measure`: measures the links of a cluster, for `lightning-hier plan`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from lightning_hier.cli.mistakes import CommandParser
from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.planning import Measurement, Processor
from lightning_hier.planning.probe import copy_speed, measure_links
from lightning_hier.version import __version__

_DESCRIPTION = """\
Measure the links of a cluster, for `lightning-hier plan`.

Start one rank for each device by torchrun, as for training, while the links are otherwise idle:

  torchrun --nnodes 2 --nproc-per-node 4 ... -m lightning_hier measure"""


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
    with _job(arguments.accelerator, arguments.timeout_s) as communicators:
        device = communicators.device
        # A group has the ranks of one host.
        hosts, devices = communicators.across.size, communicators.group.size
        copied = median(gather_json(copy_speed(device), device))
        within, between, socket_rate = measure_links(communicators)
        measured = Measurement(
            hosts=hosts,
            devices=devices,
            within=within,
            between=between,
            processor=_processor(socket_rate, copied, devices, device),
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
    limit = "time limit of every wait for a rank (%(default)s)"
    add("--timeout-s", type=float, default=300.0, help=limit)
    add("--accelerator", choices=("auto", "cpu", "gpu"), default="auto")
    return parser


@contextmanager
def _job(accelerator: str, timeout_s: float) -> Iterator[Communicators]:
    """Communicators with one group for each host. Every rank must enter this context."""
    known = os.environ
    if int(known.get("WORLD_SIZE", "1")) == 1 or "LOCAL_WORLD_SIZE" not in known:
        raise ValueError("there are no links to measure: start several ranks by torchrun")
    timeout = timedelta(seconds=timeout_s)
    device = _device(accelerator, int(known["LOCAL_RANK"]))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout)
    ranks_per_host = gather_json(int(known["LOCAL_WORLD_SIZE"]), device)
    if len(set(ranks_per_host)) > 1:
        raise ValueError(
            "all hosts must have the same number of ranks, got hosts of "
            f"{' and '.join(map(str, sorted(set(ranks_per_host))))} ranks"
        )
    layout = RankLayout.two_tiers(ranks_per_host[0], dist.get_world_size())
    communicators = Communicators.build(layout, device=device, timeout=timeout, traffic=Traffic())
    yield communicators
    # Only without an error: otherwise the barrier would wait for ranks that may be lost.
    with communicators.progress.at("the end of the measurement"):
        dist.barrier()
    dist.destroy_process_group()


def _device(accelerator: str, local_rank: int) -> torch.device:
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"rank {local_rank} of this host has no GPU: there are {torch.cuda.device_count()}. "
            "Start as many ranks on a host as it has GPUs, or use --accelerator cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


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
    print(f"hosts: {measured.hosts}, ranks of a host: {measured.devices}")
    for name, link in ("within a host", measured.within), ("between hosts", measured.between):
        if link is not None:
            print(
                f"{name}: {8e-6 * link.bytes_per_second:,.0f} Mbit/s, latency "
                f"{1e6 * link.latency_s:.0f} µs while all send"
            )
