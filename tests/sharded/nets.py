"""Modules that divide themselves on the mesh of their group, and what a fit leaves of them."""

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

_NOTED = ("seen", "validated", "norms")


class Divided(pl.LightningModule):
    """Two layers of 64 bits with a parameter of its own, divided where a strategy has a mesh.

    `seen` holds all parameters, gathered, after every step, and `norms` the last metrics of norms.
    """

    def __init__(self, optimizer: str = "SGD", lr: float = 0.05, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.optimizer, self.lr, self.options = optimizer, lr, options
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
    """Every rank initialises what no tensor parallelism divides in its own way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        torch.nn.init.constant_(self.scale, 1 + 0.1 * int(os.environ["RANK"]))


def gathered(module: nn.Module) -> Tensor:
    """All parameters, whole, in one flat copy. A collective of the group."""
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in module.parameters()]
    return torch.cat([own.detach().reshape(-1) for own in whole]).clone()


def batches(per_step: int, steps: int, rows: int = 2) -> DataLoader[Any]:
    """Batches for so many data-parallel ranks, after Lightning's sampler has divided them."""
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
    """Fit, and return the weights at the end and after every step, and metrics of norms.

    Args:
        strategy: makes the strategy.
        steps: batches of every data-parallel rank.
        model: makes the module.
        replicas: data-parallel ranks; by default all.
        settings: of the Trainer.
    """
    module = model()
    trainer = make_trainer(strategy(), **settings)
    data = batches(replicas or int(os.environ["WORLD_SIZE"]), steps)
    validation = batches(1, 1) if "val_check_interval" in settings else None
    trainer.fit(module, data, validation)
    return {"weights": gathered(module), **{name: getattr(module, name) for name in _NOTED}}


def in_turn(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Results of several jobs of the same ranks, which start once."""
    return [job() for job in jobs]
