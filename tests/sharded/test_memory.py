"""Memory of each rank of a group: 1/P of the table in docs/model_parallel.md, and as planned."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from examples.quiet import quiet_trainer
from lightning_hier import BMUFAdamFSDPStrategy, DiLoCoFSDPStrategy
from lightning_hier.planning import Link, Network, Settings, Workload, predict
from tests.ranks import run_ranks
from tests.sharded.held import KINDS, bytes_by_kind

GROUPS, RANKS = 2, 2
WIDTH, LAYERS = 64, 4
BLOCK, STEPS = 4, 6

# With momentum, as in long runs. Automatic values make such a short run model averaging.
_BMUF_ADAM = partial(BMUFAdamFSDPStrategy, block_momentum=0.5)
_DILOCO = partial(DiLoCoFSDPStrategy, outer_momentum=0.9)
STRATEGIES: dict[str, partial[Any]] = {
    "`bmuf_adam_fsdp`": _BMUF_ADAM,
    "`bmuf_adam_fsdp`, offloaded": partial(_BMUF_ADAM, offload_outer_state=True),
    "`diloco_fsdp`": _DILOCO,
    "`diloco_fsdp`, int8": partial(_DILOCO, across_dtype="int8"),
    "`diloco_fsdp`, int8, 2 fragments, delay 1": partial(
        _DILOCO, across_dtype="int8", fragments=2, overlap=1
    ),
}

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


class Transformer(pl.LightningModule):
    """Transformer layers with AdamW and random inputs, whose tensors divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
                for _ in range(LAYERS)
            )
        )
        self.model_bytes = sum(parameter.nbytes for parameter in self.parameters())
        self.held: dict[str, int] = {}

    def configure_model(self) -> None:
        assert self.device_mesh is not None
        for part in (*self.layers, self):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layers(torch.randn(1, 2, WIDTH)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-5, foreach=True)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.global_step == STEPS:  # in the middle of a block
            self.held = bytes_by_kind(self.trainer)


def _measured() -> dict[str, dict[str, float]]:
    """Return the memory of this rank in models, by strategy and kind."""
    dist.init_process_group("gloo")
    measured = {}
    for title, strategy in STRATEGIES.items():
        module = Transformer()
        trainer = quiet_trainer(
            strategy(group_size=RANKS, block_size=BLOCK, warmup_steps=0),
            devices=RANKS,
            num_nodes=GROUPS,
            max_epochs=1,
        )
        trainer.fit(module, DataLoader([torch.zeros(1)] * STEPS, batch_size=None))
        measured[title] = {kind: held / module.model_bytes for kind, held in module.held.items()}
    return measured


def test_every_rank_of_a_group_holds_its_share() -> None:
    for measured in run_ranks(_measured, GROUPS * RANKS, ranks_per_node=RANKS):
        assert measured.keys() == HELD.keys()
        for title, models in measured.items():
            expected = dict(zip(KINDS, (1.0, 1.0, 2.0, *HELD[title]), strict=True))
            for kind, own in models.items():
                held = pytest.approx(expected[kind], rel=0.01, abs=0.01)
                assert own * RANKS == held, (title, kind)
            assert sum(models.values()) == pytest.approx(_planned(title), rel=0.01), title


def _planned(title: str) -> float:
    """Predicted memory of a rank, in models."""
    name, settings = PLANNED[title]
    link = Link(bytes_per_second=1e9)
    network = Network(hosts=GROUPS, devices=RANKS, within=link, between=link)
    workload = Workload(parameters=1 << 20, step_s=1.0, optimizer="adam")
    return predict(name, workload, network, settings).memory_bytes / workload.model_bytes
