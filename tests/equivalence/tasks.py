"""Networks, batches, a loss and modules that the reference and a Trainer share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

INPUTS, HIDDEN, OUTPUTS = 5, 12, 3


class Batch(NamedTuple):
    """Inputs (B, INPUTS) and targets (B, OUTPUTS), float64."""

    x: Tensor
    y: Tensor


def batch_of(rank: int, number: int, size: int = 8) -> Batch:
    """A mini-batch of one rank, which is determined by the rank and its number."""
    generator = torch.Generator().manual_seed(10_000 * (rank + 1) + number)
    x = torch.randn(size, INPUTS, dtype=torch.float64, generator=generator)
    mix = torch.randn(
        INPUTS, OUTPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(7)
    )
    noise = torch.randn(size, OUTPUTS, dtype=torch.float64, generator=generator)
    return Batch(x + 0.3 * rank, torch.sin(x @ mix) + 0.1 * noise)


class Batches(Dataset[Batch]):
    """The first ``count`` mini-batches of a rank."""

    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._count = rank, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Batch:
        if number >= self._count:
            raise IndexError(number)
        return batch_of(self._rank, number)


def loader(rank: int, count: int) -> DataLoader[Batch]:
    """The batches of a rank in order, without a sampler that Lightning would replace."""
    return DataLoader(Batches(rank, count), batch_size=None, shuffle=False)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))


def batch_norm() -> nn.Module:
    """A network with float buffers (statistics) and an integer buffer (a count)."""
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS)
    )


def dropout() -> nn.Module:
    """A network that draws random numbers at every training step."""
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Dropout(0.4), nn.Linear(HIDDEN, OUTPUTS)
    )


def wide() -> nn.Module:
    """A network with one tensor that is large enough for a density of 2%."""
    return nn.Sequential(
        nn.Linear(INPUTS, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, OUTPUTS)
    )


class Tied(nn.Module):
    """Two layers that share their weight and differ in their bias."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(INPUTS, HIDDEN)
        self.first = nn.Linear(HIDDEN, HIDDEN)
        self.second = nn.Linear(HIDDEN, HIDDEN)
        self.second.weight = self.first.weight
        self.leave = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(torch.tanh(self.enter(x))))))
        return self.leave(hidden)


class Rebinding(nn.Module):
    """Assigns new tensors to its buffers' names at every step, as DINO does with its center."""

    center: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("center", torch.zeros(INPUTS))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.center = 0.7 * self.center + 0.3 * x.detach().mean(0)
            self.count = self.count + 1
            return self.net(x)  # as BatchNorm, which uses its buffers in evaluation only
        return self.net(x - self.center)


class PartlyUsed(nn.Module):
    """A frozen layer, a branch that only some batches use, and one that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(INPUTS, HIDDEN).requires_grad_(False)
        self.trunk = nn.Linear(HIDDEN, OUTPUTS)
        self.sometimes = nn.Linear(HIDDEN, OUTPUTS)
        self.never = nn.Linear(HIDDEN, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.frozen(x))
        out = self.trunk(hidden)
        return out + self.sometimes(hidden) if float(x[0, 0]) > 1.0 else out


class Pair(nn.Module):
    """Two networks for two optimizers. The first has BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = batch_norm(), mlp()


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "batch_norm": batch_norm,
    "dropout": dropout,
    "tied": Tied,
    "wide": wide,
    "partly_used": PartlyUsed,
    "pair": Pair,
    "rebinding": Rebinding,
}


def make_net(name: str, seed: int = 0) -> nn.Module:
    """A network in float64 with the weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name]().double()


def loss_of(net: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(net(batch.x), batch.y)


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Regression(pl.LightningModule):
    """A module with one network and one optimizer."""

    def __init__(self, net: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__()
        self.net, self.make_optimizer = net, make_optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return loss_of(self.net, batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("loss", loss_of(self.net, batch), batch_size=len(batch.x))

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.net)


B_PERIOD = 3
"""Optimizer b of :class:`TwoOptimizers` steps at every third batch."""


class TwoOptimizers(Regression):
    """Two networks and optimizers with different step frequencies, in manual optimization."""

    net: Pair

    def __init__(self, net: Pair, make_optimizer: MakeOptimizer) -> None:
        super().__init__(net, make_optimizer)
        self.automatic_optimization = False

    def training_step(  # type: ignore[override]
        self, batch: Batch, batch_idx: int
    ) -> None:
        for optimizer, net in self._due(batch_idx):
            optimizer.zero_grad()
            self.manual_backward(loss_of(net, batch))
            optimizer.step()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("loss", loss_of(self.net.a, batch), batch_size=len(batch.x))

    def _due(self, batch_idx: int) -> Iterator[tuple[Any, nn.Module]]:
        a, b = self.optimizers()
        yield a, self.net.a
        if batch_idx % B_PERIOD == B_PERIOD - 1:
            yield b, self.net.b

    def configure_optimizers(self) -> Any:
        return [self.make_optimizer(net) for net in (self.net.a, self.net.b)]


def rank_number() -> int:
    """The global rank of this process, 0 outside a job."""
    return int(os.environ.get("RANK", "0"))
