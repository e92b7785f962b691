"""Hosts of unequal speed: batches in proportion, so that a step takes equally long on all of them.

lightning-hier measure --config examples/unequal_hosts.yaml --trainer.num_nodes=2
lightning-hier fit --config examples/unequal_hosts.yaml --trainer.num_nodes=2 \
    --data.batch_sizes=[43,21]

Both are started on every host, as any training is (docs/unequal_hosts.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, TensorDataset

from examples.language.transformer import SHAPES, Transformer

CONTEXT = 64
_BYTES, _VALID_WINDOWS = 256, 512


class ShareOfBatch(Sampler[list[int]]):
    """Batches of one rank, whose size may differ from those of the others.

    A step takes ``sum(sizes)`` samples of an order that is the same on all ranks, so ranks have
    different samples and equally many batches.

    Args:
        data: samples.
        sizes: batch size of each rank.
        rank: this rank.

    """

    def __init__(self, data: Dataset[Any], sizes: list[int], rank: int) -> None:
        # One order, shuffled anew in every epoch: Lightning calls its set_epoch.
        self.sampler: Any = DistributedSampler(data, num_replicas=1, rank=0)
        self._step, self._first, self._size = sum(sizes), sum(sizes[:rank]), sizes[rank]

    def __len__(self) -> int:
        return len(self.sampler) // self._step

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        for step in range(len(self)):
            first = step * self._step + self._first
            yield order[first : first + self._size]


class PythonBytes(pl.LightningDataModule):
    """Windows of the modules of Python's standard library, one token for each byte.

    Args:
        batch_size: windows in a batch of every rank. ``lightning-hier measure`` sets it.
        batch_sizes: windows in a batch of a rank of each host, instead.

    """

    def __init__(self, batch_size: int = 32, batch_sizes: list[int] | None = None) -> None:
        super().__init__()
        self.batch_size, self.batch_sizes = batch_size, batch_sizes

    def setup(self, stage: str) -> None:
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        data = b"\n".join(file.read_bytes() for file in files)
        windows = torch.frombuffer(bytearray(data), dtype=torch.uint8).unfold(
            0, CONTEXT + 1, CONTEXT
        )
        order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
        windows = windows[order].long()
        self._valid = TensorDataset(windows[:_VALID_WINDOWS])
        self._train = TensorDataset(windows[_VALID_WINDOWS:])

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        devices, hosts = self.trainer.num_devices, self.trainer.num_nodes
        of_hosts = self.batch_sizes or [self.batch_size] * hosts
        if len(of_hosts) != hosts:
            raise ValueError(f"batch_sizes={of_hosts} must have a number for each of {hosts} hosts")
        sizes = [size for size in of_hosts for _ in range(devices)]
        share = ShareOfBatch(self._train, sizes, self.trainer.global_rank)
        return DataLoader(self._train, batch_sampler=share)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self._valid, batch_size=64)


class LanguageModel(pl.LightningModule):
    """A transformer of 0.2M parameters that predicts the next byte."""

    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.transformer = Transformer(SHAPES["tiny"], vocabulary=_BYTES)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch[0])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("valid_loss", self._loss(batch[0]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)

    def _loss(self, windows: Tensor) -> Tensor:
        logits = self.transformer(windows[:, :-1])
        return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
