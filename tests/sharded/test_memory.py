"""Memory of each rank of a group: 1/P of the table in docs/model_parallel.md, and as planned."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from benchmarks.model_parallel.held import KINDS
from benchmarks.model_parallel.memory_ranks import GROUPS, measure_all
from lightning_hier.planning import Link, Network, Settings, Workload, predict
from tests.ranks import run_ranks

# Size of a group's outer state and transfer buffers, in models, from "What each rank exchanges".
# The terms are W and Delta or DiLoCo's momentum; the moments at the start of a block; block-start
# weights and the update in flight; error feedback of a shard, and of the sums of each host. The
# third number is the outer state in the memory of the host.
_FEEDBACK = 1 + 1 / GROUPS
HELD = {
    "`bmuf_adam_fsdp`": (2.0 + 2.0, 3.0, 0.0),
    "`bmuf_adam_fsdp`, offloaded": (0.0, 3.0, 2.0 + 2.0),
    "`diloco_fsdp`": (2.0, 1.0, 0.0),
    "`diloco_fsdp`, int8": (2.0 + _FEEDBACK, 1.0, 0.0),
    "`diloco_fsdp`, int8, 2 fragments, delay 1": (2.0 + 2.0 + _FEEDBACK, 1.0, 0.0),
}
PLANNED = {
    "`bmuf_adam_fsdp`": ("bmuf_adam_fsdp", Settings()),
    "`bmuf_adam_fsdp`, offloaded": ("bmuf_adam_fsdp", Settings()),
    "`diloco_fsdp`": ("diloco_fsdp", Settings()),
    "`diloco_fsdp`, int8": ("diloco_fsdp", Settings(across_dtype="int8")),
    "`diloco_fsdp`, int8, 2 fragments, delay 1": (
        "diloco_fsdp", Settings(across_dtype="int8", fragments=2, overlap=1)
    ),
}  # fmt: skip


def _measured() -> dict[str, dict[str, float]]:
    dist.init_process_group("gloo")
    return measure_all()


def test_every_rank_of_a_group_holds_its_share() -> None:
    ranks = 2
    for measured in run_ranks(_measured, GROUPS * ranks, ranks_per_node=ranks):
        assert measured.keys() == HELD.keys()
        for title, models in measured.items():
            expected = dict(zip(KINDS, (1.0, 1.0, 2.0, *HELD[title]), strict=True))
            for kind, own in models.items():
                held = pytest.approx(expected[kind], rel=0.01, abs=0.01)
                assert own * ranks == held, (title, kind)
            assert sum(models.values()) == pytest.approx(_planned(title, ranks), rel=0.01), title


def _planned(title: str, ranks: int) -> float:
    """Predicted memory of a rank, in models."""
    name, settings = PLANNED[title]
    link = Link(bytes_per_second=1e9)
    network = Network(hosts=GROUPS, devices=ranks, within=link, between=link)
    workload = Workload(parameters=1 << 20, step_s=1.0, optimizer="adam")
    return predict(name, workload, network, settings).memory_bytes / workload.model_bytes
