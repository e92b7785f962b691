"""Modules that divide themselves on the mesh of their group, and fits that record their weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.fitting import make_trainer

_RECORDED = ("seen", "validated", "norms")


class Divided(pl.LightningModule):
    """Two float64 layers and a parameter of the module, divided if the strategy has a mesh.

    Attributes:
        seen: all parameters, gathered, after every step.
        validated: all parameters, gathered, at the start of every validation.
        norms: the last metrics of norms.

    """

    def __init__(self, optimizer: str = "SGD", lr: float = 0.05, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(11)
        # With foreach, operators dispatch lists of tensors, instead of each DTensor.
        self.optimizer, self.lr, self.options = optimizer, lr, {"foreach": True, **options}
        self.first = nn.Linear(5, 6).double()  # 6 rows do not divide evenly among four ranks
        self.second = nn.Linear(6, 2).double()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.seen: list[Tensor] = []
        self.validated: list[Tensor] = []
        self.norms: dict[str, float] = {}

    def configure_model(self) -> None:
        mesh = self.device_mesh
        # After a stage without a backward pass, FSDP2 leaves the gathered parameters of its root.
        if mesh is None or isinstance(self, FSDPModule):
            return
        if mesh["tensor_parallel"].size() > 1:
            plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
            parallelize_module(self, mesh["tensor_parallel"], plan)
        fully_shard(self.first, mesh=mesh["data_parallel"])
        fully_shard(self, mesh=mesh["data_parallel"])

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.second(torch.tanh(self.first(batch))) * self.scale
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return (self(batch[0]) - batch[1]).square().mean()

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(gathered(self))

    def on_train_end(self) -> None:
        metrics: dict[str, float] = getattr(self.trainer.strategy, "metrics", dict)()
        named = (f"hier/block/{name}" for name in ("update_norm", "model_distance"))
        self.norms = {name: metrics[name] for name in named if name in metrics}

    def on_validation_start(self) -> None:
        self.validated.append(gathered(self))

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=self.lr, **self.options)


class Unequal(Divided):
    """A module in which ranks initialise a parameter differently.

    Tensor parallelism does not divide this parameter.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        torch.nn.init.constant_(self.scale, 1 + 0.1 * int(os.environ["RANK"]))


def gathered(module: nn.Module) -> Tensor:
    """All parameters, gathered, in one flat copy. A collective of the group."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
    return torch.cat([parameter.detach().reshape(-1) for parameter in whole]).clone()


def batches(per_step: int, steps: int, rows: int = 2) -> DataLoader[Any]:
    """Data with ``steps`` batches for each of ``per_step`` data-parallel ranks.

    Lightning's sampler divides the data among the ranks.
    """
    generator = torch.Generator().manual_seed(5)
    count = per_step * steps * rows
    inputs, targets = (
        torch.randn(count, width, generator=generator, dtype=torch.float64) for width in (5, 2)
    )
    return DataLoader(TensorDataset(inputs, targets), batch_size=rows)


def trained(
    strategy: Callable[[], Any],
    steps: int,
    model: Callable[[], Divided] = Divided,
    *,
    replicas: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Fit a module, and return its weights at the end and its records.

    Args:
        strategy: makes the strategy.
        steps: number of batches of every data-parallel rank.
        model: makes the module.
        replicas: number of data-parallel ranks, by default all ranks.
        settings: further arguments of the Trainer.

    """
    module = model()
    trainer = make_trainer(strategy(), **settings)
    data = batches(replicas or int(os.environ["WORLD_SIZE"]), steps)
    validation = batches(1, 1) if "val_check_interval" in settings else None
    trainer.fit(module, data, validation)
    return {"weights": gathered(module), **{name: getattr(module, name) for name in _RECORDED}}


def in_turn(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run several jobs one after the other on the same ranks, and return their results."""
    return [job() for job in jobs]
