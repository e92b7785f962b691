"""Compiled layers and layers that recompute activations train and resume as plain layers do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch._dynamo.utils import counters as dynamo_counters
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, gathered, in_turn
from tests.trainer.fitting import make_trainer


class Layer(nn.Module):
    """A linear layer and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6).double()

    def forward(self, batch: Tensor) -> Tensor:
        return torch.tanh(self.linear(batch))


class Wrapped(Divided):
    """A module whose first layer may be wrapped before it is divided."""

    def __init__(self, way: str) -> None:
        super().__init__("AdamW", lr=0.02)
        self.way = way
        self.first = Layer()  # type: ignore[assignment]

    def configure_model(self) -> None:
        mesh: Any = self.device_mesh
        if isinstance(self.scale, DTensor) or mesh is None:
            return
        if self.way == "wrapper":
            apply_activation_checkpointing(self, check_fn=lambda own: own is self.first)
        elif self.way == "compile":
            self.first = torch.compile(self.first, backend="eager")  # type: ignore[assignment]
        fully_shard(self.first, mesh=mesh["data_parallel"])
        fully_shard(self, mesh=mesh["data_parallel"])

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(batch)) * self.scale
        return result


# Ways to wrap a layer, and whether the checkpoint of the run is a folder.
WAYS = {"wrapper": False, "compile": True}


def _fit(way: str, folder: bool, save: Path | None = None, load: Path | None = None) -> Any:
    """Weights after 12 steps, names in a checkpoint, and the number of compiled graphs."""
    torch._dynamo.reset()
    dynamo_counters.clear()
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=2, block_sync=lh.BMUFAdam(block_size=3), save_distributed_checkpoint=folder
    )
    settings: dict[str, Any] = {}
    if save is not None:
        saves = ModelCheckpoint(save.parent, save.stem, every_n_train_steps=7, save_top_k=-1)
        settings = {"callbacks": [saves], "enable_checkpointing": True}
    module = Wrapped(way)
    trainer = make_trainer(strategy, max_steps=12, **settings)
    trainer.fit(module, batches(4, 12), ckpt_path=load, weights_only=True)
    names = sorted(trainer.strategy.lightning_module_state_dict())
    return gathered(module), names, dynamo_counters["stats"]["unique_graphs"]


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wrappers")


@pytest.fixture(scope="module")
def saved(above: Path) -> list[list[Any]]:
    """Results of every rank for each way, and for a plain module with a folder and a file."""
    jobs = [partial(_fit, way, folder, above / f"{way}.ckpt") for way, folder in WAYS.items()]
    plain = [partial(_fit, "plain", True, above / "plain.ckpt"), partial(_fit, "plain", False)]
    return run_ranks(in_turn, 4, [*jobs, *plain])


def test_training_and_resume(above: Path, saved: list[list[Any]]) -> None:
    """Weights are bit-equal to those of a plain module, and checkpoints have the same names."""
    jobs = [partial(_fit, way, folder, None, above / f"{way}.ckpt") for way, folder in WAYS.items()]
    for before, after in zip(saved, run_ranks(in_turn, 4, jobs), strict=True):
        *trained, in_folders, in_files = before
        for (way, folder), runs in zip(WAYS.items(), zip(trained, after, strict=True), strict=True):
            expected, names, _ = in_folders if folder else in_files
            for weights, own, graphs in runs:
                assert torch.equal(expected, weights), way
                assert own == names
                assert bool(graphs) == (way == "compile")


@pytest.mark.usefixtures("saved")
def test_resume_with_other_wrappers(above: Path) -> None:
    path = above / "plain.ckpt"
    for error in run_ranks(_fit, 4, "wrapper", True, None, path, expect_failure=True):
        assert "the module has no parameter 'first.linear.weight'" in error
