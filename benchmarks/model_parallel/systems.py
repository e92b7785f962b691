"""Compared systems, and the strategies of their Trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import lightning_hier as lh
from benchmarks.performance import peers
from benchmarks.performance.job import Network, Steps
from benchmarks.performance.systems import by_name

_FRAGMENTS, _DELAY = 5, 9


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Settings of module and Trainer.

    Attributes:
        strategy: strategy of the Trainer.
        mesh: function that returns the mesh of the module, or None for that of the strategy.
        callbacks: callbacks of the Trainer.

    """

    strategy: Strategy
    mesh: Callable[[], DeviceMesh] | None = None
    callbacks: list[pl.Callback] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class System:
    """One system.

    Attributes:
        name: name on the command line and in keys.
        title: name in tables.
        set_up: function of network and block size that returns the settings. All ranks must call
            it.
        every_step: whether hosts communicate at every step.
        overlaps: whether steps are computed while the hosts exchange models.
        needs: optional package that it needs.

    """

    name: str
    title: str
    set_up: Callable[[Network, int], Setup]
    every_step: bool = False
    overlaps: bool = False
    needs: str = ""

    def steps(self, block_size: int) -> Steps:
        """Return numbers of steps: one block as warm-up and one that is measured."""
        if self.every_step:
            return Steps(control=10, warm_up=2, window=10)
        return Steps(control=10, warm_up=block_size, window=block_size)


class _NoFlag(pl.Callback):
    """Disable the flag that Lightning broadcasts to all hosts before every batch."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


@cache
def _hybrid_mesh(network: Network) -> DeviceMesh:
    """Return a mesh that replicates over hosts and shards over the ranks of a host."""
    shape = (network.hosts, network.ranks_per_host)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def _lightning_strategy() -> Strategy:
    size = dist.get_world_size()
    return ModelParallelStrategy(data_parallel_size=size, tensor_parallel_size=1)


def alone(network: Network) -> Setup:
    """Independent hosts: FSDP2 by Lightning's strategy on the mesh of a host's ranks."""
    mesh = partial(_host_mesh, network)
    return Setup(strategy=_lightning_strategy(), mesh=mesh, callbacks=[_NoFlag()])


def _host_mesh(network: Network) -> DeviceMesh:
    return _hybrid_mesh(network)["shard"]


def _hybrid(network: Network, block_size: int) -> Setup:
    return Setup(strategy=_lightning_strategy(), mesh=partial(_hybrid_mesh, network))


def _ours(make: Callable[..., Strategy], network: Network, block_size: int) -> Setup:
    return Setup(strategy=make(block_size=block_size, warmup_steps=0))


def _torchft(network: Network, block_size: int) -> Setup:
    from benchmarks.performance.torchft_peers import TorchftAverager

    setup = alone(network)
    setup.callbacks.append(TorchftAverager("diloco", block_size, ranks=network.ranks_per_host))
    return setup


# With momentum, as in long runs. Automatic values make such short ones model averaging.
_BMUF_ADAM = partial(lh.BMUFAdamFSDPStrategy, block_momentum=0.5)
_DILOCO = partial(lh.DiLoCoFSDPStrategy, outer_momentum=0.9)
_STREAMING = partial(_DILOCO, across_dtype="int8", fragments=_FRAGMENTS, overlap=_DELAY)

SYSTEMS = (
    System(name="hsdp", title="Lightning, hybrid sharding", set_up=_hybrid, every_step=True),
    System(
        name="bmuf_adam_fsdp",
        title="`bmuf_adam_fsdp`",
        set_up=partial(_ours, _BMUF_ADAM),
    ),
    System(name="diloco_fsdp", title="`diloco_fsdp`", set_up=partial(_ours, _DILOCO)),
    System(
        name="diloco_fsdp_streaming",
        title=f"`diloco_fsdp`, int8, {_FRAGMENTS} fragments, delay {_DELAY}",
        set_up=partial(_ours, _STREAMING),
        overlaps=True,
    ),
    System(
        name="torchft_diloco", title="torchft DiLoCo over FSDP2", set_up=_torchft, needs="torchft"
    ),
)
"""All systems. Each run also measures hosts without communication (:func:`alone`)."""


def named(name: str) -> System:
    """Return the system with this name.

    Raises:
        ValueError: there is no such system.

    """
    system: System = by_name(name, SYSTEMS)
    return system


def unavailable_reason(system: System) -> str | None:
    """Return why a system cannot run, or None if it can."""
    return peers.missing(system.needs) if system.needs else None
