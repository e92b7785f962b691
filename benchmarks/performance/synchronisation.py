"""One block synchronisation by itself: its time, its bytes and the memory that it needs.

As a module it is what a rank does. Ranks meet before each synchronisation, so that its time holds
no waiting for a rank whose steps took longer.
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

_LIMIT = timedelta(seconds=300)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Who carries the model, and how.

    Attributes:
        group_size: 1 makes every rank a worker.
        across: ``"leader"`` or ``"sharded"``; the same for groups of one rank.
        across_dtype: of what travels; ``"float32"`` as the parameters are.

    """

    group_size: int = 1
    across: str = "leader"
    across_dtype: str = "float32"

    @property
    def name(self) -> str:
        """As in tables and keys."""
        who = f"groups of {self.group_size}, {self.across}"
        return f"{'every rank a worker' if self.group_size == 1 else who}, {self.across_dtype}"

    def config(self) -> BMUF:
        """The setting of ours."""
        dtype: Any = "same" if self.across_dtype == "float32" else self.across_dtype
        across: Any = self.across
        return BMUF(block_size=1, across=across, across_dtype=dtype)


def variants(ranks_per_host: int) -> list[Variant]:
    """All of them on such hosts."""
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
    """What the ranks are told.

    Attributes:
        work: whose model.
        variants: one after the other.
        repetitions: of each, after one that warms up.
        goodput_bytes: sent over a bare socket before each variant.
        ranks_per_host: likewise, of every host.
        folder: where every rank writes what it has found.

    """

    work: Work
    variants: list[Variant]
    repetitions: int
    goodput_bytes: int
    ranks_per_host: int
    folder: str

    def encoded(self) -> str:
        """As one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: str) -> Synchronisations:
        """What :meth:`encoded` has given."""
        told = json.loads(text)
        found = [Variant(**own) for own in told["variants"]]
        return cls(**{**told, "work": Work(**told["work"]), "variants": found})


def measure(variant: Variant, told: Synchronisations) -> dict[str, Any]:
    """Seconds of each synchronisation, bytes that the host sent, and memory, of this rank."""
    goodput = measure_goodput(told.goodput_bytes, 0, told.ranks_per_host)
    module = WorkModule(told.work, dist.get_rank())
    held, resident = memory.tensor_bytes(), memory.resident_bytes()
    synchroniser = _open(module, variant, told.ranks_per_host)
    extra_tensors = memory.tensor_bytes() - held
    seconds, sent = [], []
    for _ in range(told.repetitions + 1):
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
    """Blocks of one step around the module, with groups of their own."""
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
    """Do what the first argument says."""
    told = Synchronisations.decoded(sys.argv[1])
    report(told.folder, lambda: {own.name: measure(own, told) for own in told.variants})


if __name__ == "__main__":
    main()
