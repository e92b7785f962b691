"""A small plain loop that the tests of this folder run on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from lightning_hier.comm.sharded_tensors import local_tensor
from lightning_hier.comm.tiers import GroupSize


def network() -> nn.Sequential:
    """A network with the same initial weights on all ranks."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def normed() -> nn.Sequential:
    """A network with the state of BatchNorm, and random numbers of dropout."""
    torch.manual_seed(11)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    return nn.Sequential(*layers)


def flat(module: nn.Module) -> Tensor:
    """All parameters of a module in a row, or what this rank holds of them."""
    return torch.cat([local_tensor(p).reshape(-1) for p in module.parameters()])


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs (6, 4) and targets (6, 2) of a step, which differ between ranks."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 2, generator=generator)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.02)


class Loop:
    """Module, optimizer and blocks of this rank."""

    def __init__(
        self,
        group_size: GroupSize = 1,
        *,
        make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam,
        make_module: Callable[[], nn.Module] = network,
        wrap: str = "group",
        ddp: dict[str, Any] | None = None,
        dtype: torch.dtype = torch.float32,
        **settings: Any,
    ) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.groups = lh.Groups(group_size)
        self.module = make_module().to(dtype)
        self.dtype = dtype
        self.model: nn.Module = self.module
        over = {"group": self.groups.group, "world": dist.group.WORLD}
        if wrap == "divided":
            fully_shard(self.module, mesh=self.groups.mesh["group"])
        if wrap == "world" or (wrap == "group" and self.groups.group.size() > 1):
            self.model = DistributedDataParallel(
                self.module, process_group=over[wrap], **(ddp or {})
            )
        self.optimizer = make_optimizer(self.module)
        self.blocks = lh.attach(self.model, self.optimizer, groups=self.groups, **settings)
        self.done = 0
        self.rank = dist.get_rank()  # determines the data

    def train(self, steps: int) -> None:
        for _ in range(steps):
            inputs, targets = batch(self.done, self.rank)
            outputs = self.model(inputs.to(self.dtype))
            loss = (outputs - targets.to(self.dtype)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.blocks.step()
            self.done += 1

    def weights(self) -> Tensor:
        return flat(self.module)
