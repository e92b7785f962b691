"""What the ranks of a group share: the node's replica, accumulators and counters."""

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
_LONGEST_NOTE = 2048


def shared_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """In which replica, sums and master are kept: float32, or what holds all tensors exactly."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


@dataclass(frozen=True)
class Shape:
    """What a replica is of: so many parameters, with so many elements in all, of one dtype."""

    parameters: int
    numel: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Shape:
        """That of a replica of some tensors."""
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
    devices may overwrite each other's update of an element, and one that is under way while the
    node puts new weights in may leave a few elements at their old values. Accumulators are exact.

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
        self._note = file.text(BYTES_PER_LINE * (1 + devices), _LONGEST_NOTE)
        self.weights = file.tensor(shape.dtype, shape.numel, head)
        self.node = NodeCounters(counters, 0)
        self.devices = [DeviceCounters(counters, 1 + device) for device in range(devices)]
        self.accumulators = [
            self._accumulator(i, own, head + shape.room) for i, own in enumerate(self.devices)
        ]

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return self._shape.parameters

    @property
    def pending(self) -> int:
        """Gradients of all devices that have not been taken for a push."""
        return sum(accumulator.pending for accumulator in self.accumulators)

    @property
    def exchanging(self) -> bool:
        """Whether a push is under way whose answer is not in the replica yet."""
        return self.node.begun > self.node.installed

    def install(self, weights: Tensor) -> None:
        """Replace the replica by ``weights``. The node alone may call it."""
        self.weights.copy_(weights)
        self.node.installed = self.node.begun

    def fail(self, reason: str) -> None:
        """Leave the node's devices a note on why it does not go on."""
        text = reason.encode()[:_LONGEST_NOTE]
        self._note[: len(text)] = text
        self.node.note_length = len(text)

    @property
    def failure(self) -> str | None:
        """The note on why the node does not go on; None: it does."""
        length = self.node.note_length
        return bytes(self._note[:length]).decode(errors="replace") if length else None

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _accumulator(self, device: int, own: DeviceCounters, offset: int) -> Accumulator:
        shape = self._shape
        begin = offset + device * (shape.room + shape.marks)
        total = self._file.tensor(shape.dtype, shape.numel, begin)
        present = self._file.tensor(torch.uint8, shape.parameters, begin + shape.room)
        return Accumulator(total, present, own, self._file.lock(device))


def _head(devices: int) -> int:
    return _rounded_up(BYTES_PER_LINE * (1 + devices) + _LONGEST_NOTE)


def _rounded_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
