"""The process group of `lightning-hier measure`, under torchrun, SLURM or no launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from lightning_hier.comm.agreement import gather_json
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic

_ENVIRONMENTS: tuple[type[ClusterEnvironment], ...] = (
    TorchElasticEnvironment,
    SLURMEnvironment,
    LightningEnvironment,  # a single rank without a launcher
)


@contextmanager
def job(accelerator: str, timeout_s: float) -> Iterator[Communicators]:
    """Communicators with one group per host. Every rank must enter this context.

    Args:
        accelerator: ``"cpu"``, ``"gpu"`` or ``"auto"``.
        timeout_s: time limit of every wait for other ranks.

    Raises:
        ValueError: hosts have different numbers of ranks, or a rank has no GPU.

    """
    timeout = timedelta(seconds=timeout_s)
    environment = next(kind() for kind in _ENVIRONMENTS if kind.detect())
    device = _device(accelerator, environment.local_rank())
    backend = "nccl" if device.type == "cuda" else "gloo"
    rank, ranks = environment.global_rank(), environment.world_size()
    if ranks == 1:
        # In memory: without a launcher there is no address, and a port could be in use.
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        # If torchrun has opened a store, the environment variables are sufficient to find it.
        os.environ.setdefault("MASTER_ADDR", environment.main_address)
        os.environ.setdefault("MASTER_PORT", str(environment.main_port))
        dist.init_process_group(backend, rank=rank, world_size=ranks, timeout=timeout)
    layout = RankLayout.two_tiers(
        _ranks_per_host(environment.node_rank(), device), dist.get_world_size()
    )
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


def _ranks_per_host(host: int, device: torch.device) -> int:
    """The number of ranks per host. It must be the same on all hosts."""
    hosts = gather_json(host, device)
    counts = {host: hosts.count(host) for host in sorted(set(hosts))}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} on host {host}" for host, count in counts.items())
        raise ValueError(f"all hosts must have the same number of ranks, got {listed}")
    if hosts != sorted(hosts):
        raise ValueError(
            f"ranks must be numbered host by host, got hosts {hosts} for ranks 0, 1, ..."
        )
    return counts[host]
