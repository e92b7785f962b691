"""Shared memory of a node: the replica, counters, and the sums of its devices."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ctypes import Structure, c_int64, sizeof
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.open_ports import AllGather, agree
from lightning_hier.parameter_server.shards import Shard
from lightning_hier.parameter_server.two_stage import shared_memory
from lightning_hier.parameter_server.two_stage.shared_memory import ByteLock, SharedFile

_PAGE = 4096


class DeviceCounters(Structure):
    """Counters of one device, in shared memory. They are written by the device, unless noted.

    Attributes:
        steps: steps, including those without a gradient.
        added: gradients added to the accumulator.
        arrived: rendezvous at which the device has arrived.
        finished: rendezvous after which it has copied the model.
        taken: gradients that the node has taken; written by the node.
        collectives_done: number of the last collective that has ended for the device.

    """

    steps: int
    added: int
    arrived: int
    finished: int
    taken: int
    collectives_done: int
    _fields_ = tuple((name, c_int64) for name in __annotations__)


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


class Accumulator:
    """Sum of the gradients of one device, in shared memory.

    A lock makes :meth:`add` and :meth:`take` exclude each other for a pass or two over memory. No
    thread waits for the network while it holds the lock. There is one sum for each device, and not
    one for the node, because two devices that add to the same floats at once would lose gradients.
    A second sum for each device would cost the size of the model, to avoid a short wait once a
    push.

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
                if counters.added == counters.taken:
                    # Replaces the sum that the node has taken, which saves a pass that clears it.
                    self._total.copy_(gradient)
                    self._present.copy_(present)
                else:
                    self._total.add_(gradient)
                    self._present.bitwise_or_(present)
                counters.added += 1
            return locked

    def take(self, out: Tensor, present: Tensor, *, fresh: bool, limit_s: float) -> int:
        """Write (``fresh``) or add the sum to ``out``. Only the node may call it.

        Parameters with a gradient in the sum are marked in ``present``. Returns the number of
        gradients in the sum: 0, with nothing changed, if there are none or if the device held the
        lock for ``limit_s`` seconds, because it was stopped during an addition.
        """
        with self._lock.locked(limit_s) as locked:
            if not locked:
                return 0
            counters = self._counters
            count = self.pending
            if count:
                (out.copy_ if fresh else out.add_)(self._total)
                present.bitwise_or_(self._present)
                counters.taken = counters.added
            return count


def file_size(devices: int, shard: Shard) -> int:
    """Bytes of the file of a group: counters, a replica, and an accumulator for each device."""
    return sum(_sizes(devices, shard))


def _sizes(devices: int, shard: Shard) -> list[int]:
    """Bytes of the parts of a file, in their order.

    In whole pages, so that writers have cache lines of their own and do not slow each other down.
    """
    counters = [sizeof(NodeCounters), *[sizeof(DeviceCounters)] * devices]
    values = shard.size * shard.dtype.itemsize
    accumulators = [values, len(shard.parameters)] * devices
    return [-(-size // _PAGE) * _PAGE for size in (*counters, values, *accumulators)]


class Replica:
    """The replica of one optimizer's parameters on a node, as mapped by one process.

    Devices update ``weights`` without a lock (Hogwild, eq. 2). A float is written whole, but two
    devices may overwrite each other's update of an element, and an update in progress while the
    node installs new weights may leave a few elements at their old values. Accumulators are exact.

    Args:
        path: file of :func:`file_size` bytes.
        devices: number of devices of the node.
        shard: parameters on this rank.

    Attributes:
        shard: see above.
        weights: w of the node, 1-D.
        node: counters of the node.
        devices: counters of each device.
        accumulators: accumulators of each device.

    """

    def __init__(self, path: Path, *, devices: int, shard: Shard) -> None:
        file = self._file = SharedFile(path)
        starts = accumulate(_sizes(devices, shard), initial=0)
        self.shard = shard
        self.node = file.structure(NodeCounters, next(starts))
        self.devices = [file.structure(DeviceCounters, next(starts)) for _ in range(devices)]
        self.weights = file.tensor(shard.dtype, shard.size, next(starts))
        self.accumulators: list[Accumulator] = []
        for device, counters in enumerate(self.devices):
            total = file.tensor(shard.dtype, shard.size, next(starts))
            present = file.tensor(torch.uint8, len(shard.parameters), next(starts))
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
    shards: Sequence[Shard], *, group_size: int, rank: int, exchange: AllGather
) -> list[Replica]:
    """Create the replicas of this rank's group, with the current values of the parameters.

    Every rank of the world must call it. The files are removed before it returns, so that nothing
    is left behind when ranks are killed.

    Args:
        shards: all parameters of each optimizer.
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
        for shard in shards if rank == first else ():
            paths.append(shared_memory.create_file(file_size(group_size, shard)))
        names = [str(path) for path in paths]
        memory = shared_memory.memory_id()
        return {"memory": memory, "host": socket.gethostname(), "paths": names}

    def map_all() -> None:
        for shard, path in zip(shards, rows[first]["paths"], strict=True):
            replica = Replica(Path(path), devices=group_size, shard=shard)
            replicas.append(replica)
            if rank == first:
                views = shard.views(replica.weights)
                for view, parameter in zip(views, shard.parameters, strict=True):
                    view.copy_(parameter)

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
