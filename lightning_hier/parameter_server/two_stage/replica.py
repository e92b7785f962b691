"""Shared memory of the ranks of a group: the node's replica, accumulators and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_hier.parameter_server.two_stage.accumulator import Accumulator
from lightning_hier.parameter_server.two_stage.counters import (
    BYTES_PER_LINE,
    COUNTERS_PER_LINE,
    DeviceCounters,
    NodeCounters,
)
from lightning_hier.parameter_server.two_stage.shared_file import SharedFile

_PAGE = 4096
_MAX_FAILURE_BYTES = 2048


def shared_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Dtype of replica, sums and master: float32, or one that holds all tensors exactly."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


@dataclass(frozen=True)
class Shape:
    """Number of parameters and of their elements in a replica, and their dtype."""

    parameters: int
    numel: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Shape:
        """Shape of a replica of some tensors."""
        return cls(len(tensors), sum(one.numel() for one in tensors), shared_dtype(tensors))

    @property
    def room(self) -> int:
        """Bytes of the elements, in whole pages."""
        return _rounded_up(self.numel * self.dtype.itemsize)

    @property
    def marks(self) -> int:
        """Bytes of a mark for each parameter, in whole pages."""
        return _rounded_up(self.parameters)


def file_size(devices: int, shape: Shape) -> int:
    """Bytes of the file of a group: a replica, and an accumulator for each device."""
    return _head(devices) + shape.room + devices * (shape.room + shape.marks)


class Replica:
    """One process's map of its node's replica of one optimizer's parameters.

    Devices update ``weights`` without a lock (Hogwild, eq. 2). A float is written whole, but two
    devices may overwrite each other's update of an element, and an update in progress while the
    node installs new weights may leave a few elements at their old values. Accumulators are exact.

    Args:
        path: a file of `file_size` bytes.
        devices: devices of the node.
        shape: of the parameters.

    Attributes:
        weights: w of the node, 1-D.
        node: counters of the node.
        devices: counters of each device.
        accumulators: of each device.

    """

    def __init__(self, path: Path, *, devices: int, shape: Shape) -> None:
        self._file = SharedFile(path)
        self._shape = shape
        file, head = self._file, _head(devices)
        counters = file.counters(COUNTERS_PER_LINE * (1 + devices))
        self._failure = file.text(BYTES_PER_LINE * (1 + devices), _MAX_FAILURE_BYTES)
        self.weights = file.tensor(shape.dtype, shape.numel, head)
        self.node = NodeCounters(counters, 0)
        self.devices = [DeviceCounters(counters, 1 + device) for device in range(devices)]
        self.accumulators = [
            self._accumulator(i, own, head + shape.room) for i, own in enumerate(self.devices)
        ]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self._shape.parameters

    @property
    def pending(self) -> int:
        """Gradients of all devices that belong to no push yet."""
        return sum(accumulator.pending for accumulator in self.accumulators)

    @property
    def exchanging(self) -> bool:
        """Whether a push is in flight whose answer is not in the replica yet."""
        return self.node.begun > self.node.installed

    def install(self, weights: Tensor) -> None:
        """Replace the replica by ``weights``. Only the node may call it."""
        self.weights.copy_(weights)
        self.node.installed = self.node.begun

    def fail(self, reason: str) -> None:
        """Store the reason of the node's failure for its devices."""
        text = reason.encode()[:_MAX_FAILURE_BYTES]
        self._failure[: len(text)] = text
        self.node.failure_bytes = len(text)

    @property
    def failure(self) -> str | None:
        """Reason of the node's failure; None: it has not failed."""
        length = self.node.failure_bytes
        return bytes(self._failure[:length]).decode(errors="replace") if length else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _accumulator(self, device: int, own: DeviceCounters, offset: int) -> Accumulator:
        shape = self._shape
        begin = offset + device * (shape.room + shape.marks)
        total = self._file.tensor(shape.dtype, shape.numel, begin)
        present = self._file.tensor(torch.uint8, shape.parameters, begin + shape.room)
        return Accumulator(total, present, own, self._file.lock(device))


def _head(devices: int) -> int:
    return _rounded_up(BYTES_PER_LINE * (1 + devices) + _MAX_FAILURE_BYTES)


def _rounded_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
