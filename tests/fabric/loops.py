"""A small loop of Fabric that the tests of this folder run on real ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor, nn

from lightning_hier.comm.tiers import GroupSize
from lightning_hier.fabric import HierarchicalStrategy
from tests.loop.loops import adam, batch, flat, network


def launched(strategy: Any, **arguments: Any) -> Fabric:
    """A Fabric on the ranks of this run."""
    devices = int(os.environ["WORLD_SIZE"])
    fabric = Fabric(accelerator="cpu", devices=devices, strategy=strategy, **arguments)
    fabric.launch()
    return fabric


class FabricLoop:
    """The loop of `tests.loop.loops`, run by Fabric."""

    def __init__(
        self,
        group_size: GroupSize = 1,
        *,
        make_module: Callable[[], nn.Module] = network,
        fabric: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.fabric = launched(
            HierarchicalStrategy(group_size=group_size, **settings), **(fabric or {})
        )
        self.module = make_module()
        self.model, self.optimizer = self.fabric.setup(self.module, adam(self.module))
        self.rank = dist.get_rank()
        self.done = 0

    def train(self, steps: int) -> None:
        for _ in range(steps):
            inputs, targets = batch(self.done, self.rank)
            self.fabric.backward((self.model(inputs) - targets).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.done += 1

    def weights(self) -> Tensor:
        return flat(self.module)
