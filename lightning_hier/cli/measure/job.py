"""The ranks that measure: started by torchrun or SLURM, each knowing its host, or one alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from lightning_hier.comm.agreement import gather_json, raise_everywhere
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.progress_record import progress_record
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic

_KNOWN: tuple[type[ClusterEnvironment], ...] = (TorchElasticEnvironment, SLURMEnvironment)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where this rank is among the others.

    Attributes:
        rank: of the world.
        hosts: number of them.
        devices: ranks of each.
        device: where this rank's tensors are.
        backend: of the process group; empty where there is one rank.
        communicators: a group for each host; None where there is one rank.

    """

    rank: int
    hosts: int
    devices: int
    device: torch.device
    backend: str
    communicators: Communicators | None


@contextmanager
def joined(accelerator: str, timeout_s: float) -> Iterator[Job]:
    """Be in the job, and leave it when all ranks are done. Every rank must call it.

    Args:
        accelerator: ``"cpu"``, ``"gpu"`` or ``"auto"``.
        timeout_s: limit of every wait for other ranks.

    Raises:
        ValueError: hosts have different numbers of ranks, or there is no GPU where one is asked
            for.

    """
    environment = next((kind() for kind in _KNOWN if kind.detect()), None)
    if environment is None or environment.world_size() == 1:
        device = _device(accelerator, 0)
        yield Job(rank=0, hosts=1, devices=1, device=device, backend="", communicators=None)
        return
    device = _device(accelerator, environment.local_rank())
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    # Where torchrun has opened a store, it is found by the variables alone.
    os.environ.setdefault("MASTER_ADDR", environment.main_address)
    os.environ.setdefault("MASTER_PORT", str(environment.main_port))
    dist.init_process_group(
        backend,
        rank=environment.global_rank(),
        world_size=environment.world_size(),
        timeout=timeout,
    )
    hosts = _hosts(environment.node_rank(), device)
    devices = dist.get_world_size() // hosts
    yield Job(
        rank=dist.get_rank(),
        hosts=hosts,
        devices=devices,
        device=device,
        backend=backend,
        communicators=Communicators.build(
            RankLayout.two_tiers(devices, dist.get_world_size()),
            device=device,
            timeout=timeout,
            traffic=Traffic(),
        ),
    )
    # Not after an error: leaving waits for ranks that may be gone.
    with progress_record().at("the end of the measurement"):
        dist.barrier()
    dist.destroy_process_group()


def _device(accelerator: str, local_rank: int) -> torch.device:
    if accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"rank {local_rank} of this host has no GPU: there are {torch.cuda.device_count()}. "
            "Start as many ranks on a host as it has GPUs, or say --accelerator cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _hosts(own: int, device: torch.device) -> int:
    """The number of hosts, which must have equally many ranks, one host's after the other's."""
    host_of = gather_json(own, device)
    counts = {host: host_of.count(host) for host in sorted(set(host_of))}
    problem = None
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} on host {host}" for host, count in counts.items())
        problem = f"all hosts must have the same number of ranks, got {said}"
    elif host_of != sorted(host_of):
        problem = f"ranks must be numbered host by host, got hosts {host_of} for ranks 0, 1, ..."
    raise_everywhere(problem, device)
    return len(counts)
