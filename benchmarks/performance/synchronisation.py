"""Time, bytes and memory of a block synchronisation without training.

torchrun starts this module on every rank. A barrier before each synchronisation excludes the time
of waiting for slower ranks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.hosts import link_bytes
from benchmarks.opened_blocks import open_blocks
from benchmarks.performance import memory
from benchmarks.performance.link import measure_goodput
from benchmarks.performance.on_rank import report
from benchmarks.performance.work import Work, WorkModule
from lightning_hier import BMUF
from lightning_hier.comm.blocks.block_synchroniser import BlockSynchroniser
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.tiers import RankLayout
from lightning_hier.comm.traffic import Traffic
from lightning_hier.planning import Settings

_LIMIT = timedelta(seconds=300)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings of BMUF.

    Attributes:
        group_size: ranks in a group.
        across: ``"leader"`` or ``"sharded"``, without effect for groups of one rank.
        across_dtype: dtype of the updates that are sent. That of the parameters is ``"float32"``.

    """

    group_size: int = 1
    across: str = "leader"
    across_dtype: str = "float32"

    @property
    def name(self) -> str:
        """Name in tables and keys."""
        who = f"groups of {self.group_size}, {self.across}"
        return f"{'every rank a worker' if self.group_size == 1 else who}, {self.across_dtype}"

    def config(self) -> BMUF:
        """Return the configuration of the block synchronisation."""
        return BMUF(block_size=1, **self._across)

    def planner_settings(self) -> Settings:
        """Return the settings of the planner for the same synchronisation."""
        return Settings(density=None, group_size=self.group_size, **self._across)

    @property
    def _across(self) -> dict[str, Any]:
        dtype = "same" if self.across_dtype == "float32" else self.across_dtype
        return {"across": self.across, "across_dtype": dtype}


def variants(ranks_per_host: int) -> list[Variant]:
    """Return all variants for hosts with this number of ranks."""
    placements = [(1, "leader")]
    if ranks_per_host > 1:
        placements += [(ranks_per_host, "leader"), (ranks_per_host, "sharded")]
    return [
        Variant(group_size=size, across=across, across_dtype=dtype)
        for dtype in ("float32", "bfloat16", "int8", "int4")
        for size, across in placements
    ]


@dataclass(frozen=True, kw_only=True)
class Synchronisations:
    """Settings of the measurement.

    Attributes:
        work: work whose model is synchronised.
        variants: variants to measure, one after the other.
        repetitions: synchronisations of each variant, after one that is not measured.
        goodput_bytes: bytes that are sent over a plain socket before each variant.
        ranks_per_host: number of ranks on each host.
        folder: folder into which every rank writes its result.

    """

    work: Work
    variants: list[Variant]
    repetitions: int
    goodput_bytes: int
    ranks_per_host: int
    folder: str

    def encoded(self) -> str:
        """Encode the settings as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Synchronisations:
        """Decode the result of :meth:`encoded`."""
        values = json.loads(text)
        decoded = [Variant(**variant) for variant in values["variants"]]
        return cls(**{**values, "work": Work(**values["work"]), "variants": decoded})


def measure(variant: Variant, settings: Synchronisations) -> dict[str, Any]:
    """Measure time, bytes sent by the host, and memory of this rank. All ranks must call it."""
    goodput = measure_goodput(settings.goodput_bytes, 0, settings.ranks_per_host)
    module = WorkModule(settings.work, dist.get_rank())
    held, resident = memory.tensor_bytes(), memory.resident_bytes()
    synchroniser = _open(module, variant, settings.ranks_per_host)
    extra_tensors = memory.tensor_bytes() - held
    seconds, sent = [], []
    for _ in range(settings.repetitions + 1):
        module.drift()
        dist.barrier()
        before = link_bytes(os.environ["GLOO_SOCKET_IFNAME"])[0]
        begun = time.perf_counter()
        synchroniser.after_step(0)
        seconds.append(time.perf_counter() - begun)
        dist.barrier()
        sent.append(link_bytes(os.environ["GLOO_SOCKET_IFNAME"])[0] - before)
    gc.collect()
    return {
        "goodput": goodput,
        "seconds": seconds[1:],
        "sent_bytes": sent[1:],
        "extra_tensor_bytes": extra_tensors,
        "extra_resident_bytes": memory.resident_bytes() - resident,
    }


def _open(module: WorkModule, variant: Variant, ranks_per_host: int) -> BlockSynchroniser:
    """Create the synchroniser of the module, with blocks of one step, and its process groups."""
    ranks = dist.get_world_size()
    communicators = Communicators.build(
        RankLayout.two_tiers(variant.group_size, ranks),
        device=torch.device("cpu"),
        timeout=_LIMIT,
        traffic=Traffic(),
        host_of=[rank // ranks_per_host for rank in range(ranks)],
    )
    optimizer = module.configure_optimizers()
    return open_blocks(module, optimizer, variant.config(), communicators)


def main() -> None:
    """Measure with the settings of the first argument."""
    settings = Synchronisations.decoded(sys.argv[1])
    report(settings.folder, lambda: {one.name: measure(one, settings) for one in settings.variants})


if __name__ == "__main__":
    main()
