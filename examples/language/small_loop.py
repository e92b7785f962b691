"""Options, data, model and losses of ``examples/plain_loop.py`` and ``accelerate_loop.py``."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from examples.language.data_module import Text
from examples.language.transformer import SHAPES, Transformer
from examples.language.windows import IGNORED, Batch

CONTEXT = 64
BATCH_WINDOWS = 8
_VOCABULARY = 257  # bytes and the end of a document
_VALIDATED_BATCHES = 20


def options(folder: str) -> argparse.Namespace:
    """Options of the command line. ``folder`` is the default folder of the checkpoints."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("lightning_hier").setLevel(logging.INFO)  # values of "auto", on rank 0
    parser = argparse.ArgumentParser()
    parser.add_argument("--group_size", type=_group_size, default=2, help="ranks, or 'node'")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save_every", type=int, default=50, help="steps")
    parser.add_argument("--folder", type=Path, default=Path(folder), help="of the checkpoints")
    parser.add_argument("--path", help="Python files instead of the standard library")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    return given


def loaders(path: str | None = None) -> tuple[DataLoader[Batch], Any]:
    """Loaders of this rank: windows of Python files, by default of the standard library.

    Args:
        path: folder of the files.

    Returns:
        The loaders of the train and the valid split, whose batches differ between ranks.

    """
    data = Text(corpus_args={"path": path}, context=CONTEXT, batch_windows=BATCH_WINDOWS)
    return data.train_dataloader(), data.val_dataloader()


def transformer() -> Transformer:
    """A transformer of 0.2M parameters, with the same initial weights in every process."""
    torch.manual_seed(0)
    return Transformer(SHAPES["tiny"], vocabulary=_VOCABULARY)


def batches_from(step: int, loader: DataLoader[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets (B, T) of endless epochs, without those of the first ``step`` steps."""
    return islice(_endless(loader), step, None)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of the targets (B, T), given the tokens (B, T) before them."""
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def mean_loss(model: nn.Module, loader: DataLoader[Batch]) -> float:
    """Loss of the first 20 batches of every rank. A collective of the world."""
    model.eval()
    losses = [loss_of(model, *batch[:2]) for batch in islice(loader, _VALIDATED_BATCHES)]
    model.train()
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def _endless(loader: DataLoader[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in count():
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from (batch[:2] for batch in loader)


def _group_size(text: str) -> int | str:
    return text if text == "node" else int(text)
