"""What every system trains: transformer layers, each divided by FSDP2 on a mesh of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW, Optimizer


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of the model and of a rank's batch.

    The defaults are 4.7 million parameters: averaging their gradients at every step takes a link of
    1 Gbit/s about as long as two cores need to compute a step of four ranks.

    Attributes:
        width: of the residual stream; the feed-forward layers have four times as many units.
        layers: number of them.
        sequences: of a batch.
        tokens: of a sequence.

    """

    width: int = 256
    layers: int = 6
    sequences: int = 2
    tokens: int = 16


class Transformer(pl.LightningModule):
    """Layers with residual connections, with AdamW; inputs and targets are random.

    Args:
        size: of the model.
        mesh: what to divide the layers on. None: the data-parallel mesh of the strategy.

    """

    def __init__(self, size: Size, mesh: Callable[[], DeviceMesh] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.size, self._mesh_of = size, mesh
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                size.width, 4, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(size.layers)
        )
        self.model_bytes = sum(own.nbytes for own in self.parameters())

    def configure_model(self) -> None:
        if self._mesh_of is None:
            assert self.device_mesh is not None, "the strategy makes it"
            mesh = self.device_mesh["data_parallel"]
        else:
            mesh = self._mesh_of()
        for layer in self.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        shape = (self.size.sequences, self.size.tokens, self.size.width)
        return (self(torch.randn(shape)) - torch.randn(shape)).square().mean()

    def configure_optimizers(self) -> Optimizer:
        return AdamW(self.parameters(), lr=1e-5)
