"""Shared memory of a node: the replica, counters, and the sums of its devices."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ctypes import Structure, c_int64, sizeof
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.open_ports import AllGather, agree
from lightning_hier.parameter_server.two_stage import shared_memory
from lightning_hier.parameter_server.two_stage.accumulator import Accumulator, DeviceCounters
from lightning_hier.parameter_server.two_stage.shared_memory import SharedFile

_PAGE = 4096


class NodeCounters(Structure):
    """Counters of the node, written by the thread that exchanges with the master.

    Attributes:
        begun: pushes begun.
        installed: pushes whose answer is in the replica.
        finals: rendezvous after which the replica holds the master's model.

    """

    begun: int
    installed: int
    finals: int
    _fields_ = tuple((name, c_int64) for name in __annotations__)


def shared_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Dtype of replica, sums and master: float32, or one that represents all tensors exactly."""
    # At least float32, because sums and many small updates lose too much in half precision.
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


def file_size(devices: int, shape: Shape) -> int:
    """Bytes of the file of a group: counters, a replica, and an accumulator for each device."""
    return sum(_sizes(devices, shape))


def _sizes(devices: int, shape: Shape) -> list[int]:
    """Bytes of the parts of a file, in their order.

    In whole pages, so that writers have cache lines of their own and do not slow each other down.
    """
    counters = [sizeof(NodeCounters), *[sizeof(DeviceCounters)] * devices]
    values = shape.numel * shape.dtype.itemsize
    accumulators = [values, shape.parameters] * devices
    return [-(-size // _PAGE) * _PAGE for size in (*counters, values, *accumulators)]


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
        parameters: number of parameters.
        weights: w of the node, 1-D.
        node: counters of the node.
        devices: counters of each device.
        accumulators: accumulators of each device.

    """

    def __init__(self, path: Path, *, devices: int, shape: Shape) -> None:
        file = self._file = SharedFile(path)
        starts = accumulate(_sizes(devices, shape), initial=0)
        self.parameters = shape.parameters
        self.node = file.structure(NodeCounters, next(starts))
        self.devices = [file.structure(DeviceCounters, next(starts)) for _ in range(devices)]
        self.weights = file.tensor(shape.dtype, shape.numel, next(starts))
        self.accumulators: list[Accumulator] = []
        for device, counters in enumerate(self.devices):
            total = file.tensor(shape.dtype, shape.numel, next(starts))
            present = file.tensor(torch.uint8, shape.parameters, next(starts))
            # The byte only identifies the lock. What the file contains there does not matter.
            self.accumulators.append(Accumulator(total, present, counters, file.lock(device)))

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

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@torch.no_grad()
def open_replicas(
    parts: Sequence[Sequence[Tensor]], *, group_size: int, rank: int, exchange: AllGather
) -> list[Replica]:
    """Create the replicas of this rank's group, with the current values of the tensors.

    Every rank of the world must call it. The files are removed before it returns, so that nothing
    is left behind when ranks are killed.

    Args:
        parts: tensors of each optimizer.
        group_size: number of consecutive ranks that share memory.
        rank: this rank.
        exchange: all-gather over the world.

    Raises:
        RuntimeError: on every rank, if a group spans several hosts, if there is not enough shared
            memory, or if a rank cannot open the file of its group.

    """
    first = rank - rank % group_size
    # Of the files that this rank has created. Other ranks of the group get them from it.
    paths: list[Path] = []
    replicas: list[Replica] = []

    def create() -> dict[str, Any]:
        # Each path is stored at once, so that files are removed if a later one cannot be created.
        for tensors in parts if rank == first else ():
            paths.append(shared_memory.create_file(file_size(group_size, Shape.of(tensors))))
        names = [str(path) for path in paths]
        memory = shared_memory.memory_id()
        return {"memory": memory, "host": socket.gethostname(), "paths": names}

    def map_all() -> None:
        for tensors, path in zip(parts, rows[first]["paths"], strict=True):
            replica = Replica(Path(path), devices=group_size, shape=Shape.of(tensors))
            replicas.append(replica)
            if rank == first:
                views = shaped(replica.weights, tensors)
                for view, tensor in zip(views, tensors, strict=True):
                    view.copy_(tensor)

    try:
        rows = agree(exchange, create, "a node's shared memory could not be created")
        _require_one_memory(rows, group_size)
        # Also the barrier after which the replica has its values and the file may be removed.
        agree(exchange, map_all, "a node's shared memory could not be opened")
        return replicas
    finally:
        for path in paths:
            shared_memory.remove_file(path)


def _require_one_memory(rows: Sequence[dict[str, Any]], group_size: int) -> None:
    for first in range(0, len(rows), group_size):
        group = rows[first : first + group_size]
        if len({row["memory"] for row in group}) > 1:
            hosts = ", ".join(f"rank {first + i} on {row['host']}" for i, row in enumerate(group))
            raise RuntimeError(
                f"the ranks of a group must share memory, but these do not: {hosts}; set "
                "group_size='node', and let containers of one host share /dev/shm"
            )
