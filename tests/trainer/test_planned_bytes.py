"""Tests that the planner's number of bytes equals the number that real ranks count."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lightning_hier as lh
from lightning_hier.planning import Link, Network, Settings, Workload, predict
from lightning_hier.planning.synchronisation import synchronise
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF, BMUF_ADAM, HIERARCHICAL, Net, fit

STEPS, BLOCK = 4, 2
ELEMENTS = 4096
SENT = {"words": 8, "bitmap": ELEMENTS}
LINK = Link(bytes_per_second=1e9)
HOSTS = Network(hosts=2, devices=2, within=LINK, between=LINK)
# Fragments and their shards consist of whole quantisation groups, and of whole parts of 4096
# elements. Sparse exchanges select 1/16 of each part.
TENSORS, EACH = 4, 8192
NET = Workload(parameters=TENSORS * EACH, step_s=1.0)


def _groups(across: Any, group_size: int = 2, **sync: Any) -> lh.HierarchicalStrategy:
    block_sync = lh.BMUF(block_momentum=0.5, block_size=BLOCK, across=across, **sync)
    return HIERARCHICAL(group_size=group_size, block_sync=block_sync)


def _workers(make: Any, **sync: Any) -> lh.HierarchicalStrategy:
    return HIERARCHICAL(group_size=1, block_sync=make(block_size=BLOCK, **sync))


_SPARSE: Any = {"across_density": 1 / 16}
# When the last block ends, one of the two fragments has already made a step of its next block. The
# evaluation at the end of the epoch and the end of training both send it once more.
PARTS: Any = {
    "fragments, int4": {"fragments": 2, "across_dtype": "int4"},
    "fragments, overlap, 1/16 in int4": {
        "fragments": 2, "overlap": 1, "across_dtype": "int4", **_SPARSE
    },
}  # fmt: skip
BLOCKS: dict[str, tuple[Settings, Any]] = {
    "bmuf": (Settings(), partial(BMUF, block_size=BLOCK)),
    "1/16 in int4": (
        Settings(across_dtype="int4", **_SPARSE),
        partial(_groups, "auto", 1, across_dtype="int4", **_SPARSE),
    ),
    "bmuf, overlap": (Settings(overlap=True), partial(BMUF, block_size=BLOCK, overlap=True)),
    "bmuf_adam": (Settings(block_sync="bmuf_adam"), partial(BMUF_ADAM, block_size=BLOCK)),
    **{
        name: (Settings(block_sync="diloco", **part), partial(_workers, lh.DiLoCo, **part))
        for name, part in PARTS.items()
    },
    "moments every 2 blocks": (
        Settings(block_sync="bmuf_adam", moments_every=2),
        partial(_workers, lh.BMUFAdam, moments_every=2, local_beta1="keep"),
    ),
    "leader": (Settings(group_size=2), partial(_groups, "leader")),
    "sharded, 1/16": (
        Settings(group_size=2, across="sharded", **_SPARSE),
        partial(_groups, "sharded", **_SPARSE),
    ),
}


class _Sparse(Net):
    """Has one tensor. The gradients of all ranks have the same number of nonzero elements."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.used = used
        self.layers = nn.Sequential()
        self.values = nn.Parameter(torch.zeros(ELEMENTS))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return self.values[: self.used].sum()


class _Even(Net):
    """Has tensors of equal size."""

    def __init__(self, **optimizer: Any) -> None:
        super().__init__(**optimizer)
        self.layers = nn.Sequential()
        self.values = nn.ParameterList(torch.linspace(-1, 1, EACH) for _ in range(TENSORS))

    def loss(self, batch: list[Tensor]) -> Tensor:
        return sum((values.square().sum() for values in self.values), torch.zeros(()))


def _train() -> dict[str, dict[str, int]]:
    results = {}
    for name, (settings, make) in BLOCKS.items():
        model = _Even(optimizer="Adam", lr=0.01) if settings.moments else _Even()
        trainer = fit(make(), STEPS, model)
        traffic = trainer.strategy.traffic
        results[name] = {"models": traffic.of("across", "models").payload_bytes}
    for name, used in SENT.items():
        strategy = lh.GTCStrategy(threshold=1e-9, dense_below=0, warmup_steps=0)
        trainer = fit(strategy, STEPS, _Sparse(used))
        traffic = trainer.strategy.traffic
        results[name] = {"gradients": traffic.of("group", "gradients").payload_bytes}
    return results


def test_bytes_that_a_host_sends_to_the_other_host() -> None:
    """Bytes of models in all synchronisations of a run, and of gradients.

    Those of gradients are exact if all ranks send equally many elements.
    """
    ranks = run_ranks(_train, 4, ranks_per_node=2)
    for name, (settings, _) in BLOCKS.items():
        planned = synchronise(NET, HOSTS, settings)
        for host in (ranks[:2], ranks[2:]):
            sent = sum(rank[name]["models"] for rank in host)
            again = 2 * planned.peak_bytes if name in PARTS else 0
            assert sent == STEPS // BLOCK * planned.host_bytes + again, name
    workload = Workload(parameters=ELEMENTS, step_s=1.0)
    for name, elements in SENT.items():
        # In the ring, one rank of a host sends to the other. So a host sends as much as a rank.
        gradients = predict("gtc", workload, HOSTS, Settings(density=elements / ELEMENTS))
        for rank in ranks:
            assert rank[name]["gradients"] == STEPS * gradients.host_bytes, name
