"""Number of samples in a batch, by which groups count with ``weighting="samples"``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import lightning.pytorch as pl
from torch import Tensor

from lightning_hier.algorithms.arguments import is_number

_WAYS_OUT = (
    "Give the LightningModule a method batch_samples(batch) that returns the number of samples, or "
    "pass weighting='equal'."
)


def batch_samples(module: pl.LightningModule, batch: Any) -> float:
    """Samples of a batch on this rank. Does not communicate.

    What ``batch_samples(batch)`` of the module returns, if it has this method. Otherwise the size
    of the first dimension of all tensors in the batch. Tensors without dimensions do not count.

    Args:
        module: module that is trained.
        batch: a tensor, or lists, tuples, mappings and dataclasses of tensors.

    Raises:
        ValueError: tensors have different sizes, there are none, or the method returns something
            else than a finite number of at least 0.

    """
    count = getattr(module, "batch_samples", None)
    if count is not None:
        number = count(batch)
        number = number.item() if isinstance(number, Tensor) else number
        if not is_number(number) or not math.isfinite(number) or number < 0:
            raise ValueError(
                "batch_samples(batch) must return the samples of a batch, a finite number of at "
                f"least 0, got {number!r}"
            )
        return float(number)
    sizes = sorted(set(_first_sizes(batch)))
    # No majority or maximum: a wrong count would give a group a wrong weight without a message.
    if len(sizes) != 1:
        found = f"first dimensions of {', '.join(map(str, sizes))}" if sizes else "no tensors"
        raise ValueError(
            "weighting='samples' takes the samples of a batch from the first dimension of its "
            f"tensors, but a {type(batch).__name__} has {found}. {_WAYS_OUT}"
        )
    return float(sizes[0])


def _first_sizes(batch: Any) -> Iterator[int]:
    """First dimension of every tensor in a batch. Values of other types are ignored."""
    if isinstance(batch, Tensor):
        if batch.ndim:  # a scalar belongs to the whole batch, such as a padded length
            yield batch.size(0)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _first_sizes(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _first_sizes(value)
    elif is_dataclass(batch) and not isinstance(batch, type):  # is_dataclass accepts classes too
        for field in fields(batch):
            yield from _first_sizes(getattr(batch, field.name))
