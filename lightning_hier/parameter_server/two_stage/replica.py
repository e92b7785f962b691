"""Shared memory of a node: the replica, a sum of gradients for each device, and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lightning_hier.parameter_server.two_stage.shared_memory import (
    BYTES_PER_LINE,
    COUNTERS_PER_LINE,
    ByteLock,
    DeviceCounters,
    NodeCounters,
    SharedFile,
)


@dataclass(frozen=True)
class Taken:
    """Result of taking the sum of one accumulator.

    Attributes:
        count: gradients in the sum.
        lost: gradients that were dropped because their device died during an addition.

    """

    count: int
    lost: int = 0


class Accumulator:
    """Sum of the gradients of one device, in shared memory.

    A lock makes :meth:`add` and :meth:`take` exclude each other for a pass or two over memory. No
    thread waits for the network while it holds the lock. There is one sum for each device, and not
    one for the node, because two devices that add to the same floats at once would lose gradients.
    A second sum for each device would cost the size of the model, to avoid a short wait once a
    push.

    A device that dies during an addition leaves ``adding`` set. The sum then contains a part of
    its last gradient, so the whole sum is dropped.

    Args:
        total: the sum, 1-D.
        present: a byte for each parameter, 1 if the sum contains a gradient of it.
        counters: counters of the device.
        lock: shared by device and node.

    """

    def __init__(
        self, total: Tensor, present: Tensor, counters: DeviceCounters, lock: ByteLock
    ) -> None:
        self._total = total
        self._present = present
        self._counters = counters
        self._lock = lock

    @property
    def pending(self) -> int:
        """Number of gradients that have been added and not taken."""
        return self._counters.added - self._counters.taken

    def add(self, gradient: Tensor, present: Tensor, limit_s: float) -> bool:
        """Add a gradient. Only the device may call it.

        Args:
            gradient: 1-D, zero if a parameter has none.
            present: as in the constructor, for this gradient.
            limit_s: limit of the wait for the lock, in seconds.

        Returns:
            False, with nothing changed, if the limit has passed.

        """
        with self._lock.locked(limit_s) as locked:
            if locked:
                counters = self._counters
                counters.adding = 1
                if counters.added == counters.taken:
                    self._total.copy_(gradient)  # replaces the sum that the node has taken
                    self._present.copy_(present)
                else:
                    self._total.add_(gradient)
                    self._present.bitwise_or_(present)
                # In this order: if the device dies in between, the node drops the whole sum.
                counters.added += 1
                counters.adding = 0
            return locked

    def take(self, out: Tensor, present: Tensor, *, fresh: bool, limit_s: float) -> Taken | None:
        """Write (``fresh``) or add the sum to ``out``. Only the node may call it.

        Parameters with a gradient in the sum are marked in ``present``. Returns None, with nothing
        changed, if the device held the lock for ``limit_s`` seconds: it was stopped during an
        addition.
        """
        with self._lock.locked(limit_s) as locked:
            if not locked:
                return None
            counters = self._counters
            count = self.pending
            if counters.adding:
                counters.adding = 0
                counters.taken = counters.added
                return Taken(0, lost=count)
            if count:
                (out.copy_ if fresh else out.add_)(self._total)
                present.bitwise_or_(self._present)
                counters.taken = counters.added
            return Taken(count)


_PAGE = 4096
_MAX_FAILURE_BYTES = 2048


def shared_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Dtype of replica, sums and master: float32, or one that represents all tensors exactly."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def shaped(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of ``flat`` in the shapes of the tensors."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for tensor, piece in zip(tensors, pieces, strict=True)]


@dataclass(frozen=True)
class Shape:
    """Number of parameters in a replica, number of their elements, and their dtype."""

    parameters: int
    numel: int
    dtype: torch.dtype

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Shape:
        """Shape of a replica of some tensors."""
        return cls(len(tensors), sum(tensor.numel() for tensor in tensors), shared_dtype(tensors))

    @property
    def values_bytes(self) -> int:
        """Bytes of the elements, in whole pages."""
        return _rounded_up(self.numel * self.dtype.itemsize)

    @property
    def accumulator_bytes(self) -> int:
        """Bytes of an accumulator: its sum and its ``present``, each in whole pages."""
        return self.values_bytes + _rounded_up(self.parameters)


def file_size(devices: int, shape: Shape) -> int:
    """Bytes of the file of a group: counters, a replica, and an accumulator for each device."""
    return _head(devices) + shape.values_bytes + devices * shape.accumulator_bytes


class Replica:
    """The replica of one optimizer's parameters on a node, as mapped by one process.

    Devices update ``weights`` without a lock (Hogwild, eq. 2). A float is written whole, but two
    devices may overwrite each other's update of an element, and an update in progress while the
    node installs new weights may leave a few elements at their old values. Accumulators are exact.

    Args:
        path: file of :func:`file_size` bytes.
        devices: number of devices of the node.
        shape: shape of the parameters.

    Attributes:
        weights: w of the node, 1-D.
        node: counters of the node.
        devices: counters of each device.
        accumulators: accumulators of each device.

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
        first = head + shape.values_bytes
        self.accumulators = [
            self._accumulator(device, first + device * shape.accumulator_bytes)
            for device in range(devices)
        ]

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self._shape.parameters

    @property
    def pending(self) -> int:
        """Number of gradients of all devices that are not in a push yet."""
        return sum(accumulator.pending for accumulator in self.accumulators)

    @property
    def exchanging(self) -> bool:
        """Whether a push is in flight whose answer is not in the replica yet."""
        return self.node.begun > self.node.installed

    def install(self, weights: Tensor) -> None:
        """Replace the replica by ``weights``. Only the node may call it."""
        # Before the counter, at whose increase devices copy the weights.
        self.weights.copy_(weights)
        self.node.installed = self.node.begun

    def fail(self, reason: str) -> None:
        """Store the reason of the node's failure for its devices."""
        text = reason.encode()[:_MAX_FAILURE_BYTES]
        # Before its length, which tells devices that there is a text.
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

    def _accumulator(self, device: int, offset: int) -> Accumulator:
        shape = self._shape
        total = self._file.tensor(shape.dtype, shape.numel, offset)
        present = self._file.tensor(torch.uint8, shape.parameters, offset + shape.values_bytes)
        return Accumulator(total, present, self.devices[device], self._file.lock(device))


def _head(devices: int) -> int:
    return _rounded_up(BYTES_PER_LINE * (1 + devices) + _MAX_FAILURE_BYTES)


def _rounded_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
