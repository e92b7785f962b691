"""Model that every system trains: transformer layers that FSDP2 shards on a mesh."""

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
    """Size of the model and of the batch of a rank.

    The defaults give 4.7 million parameters. The time to average their gradients over a link of
    1 Gbit/s is about the time in which two cores compute a step of four ranks.

    Attributes:
        width: width of the residual stream. Feed-forward layers have four times as many units.
        layers: number of layers.
        sequences: number of sequences in a batch.
        tokens: number of tokens in a sequence.

    """

    width: int = 256
    layers: int = 6
    sequences: int = 2
    tokens: int = 16


class Transformer(pl.LightningModule):
    """Transformer layers with AdamW, random inputs and random targets.

    Args:
        size: size of the model.
        mesh: function that returns the mesh on which layers are sharded. The default is the
            data-parallel mesh of the strategy.

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
        self.model_bytes = sum(parameter.nbytes for parameter in self.parameters())

    def configure_model(self) -> None:
        if self._mesh_of is None:
            assert self.device_mesh is not None, "the strategy creates it"
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
