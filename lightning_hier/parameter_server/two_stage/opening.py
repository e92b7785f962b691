"""Shared memory of a group: one rank creates a file, all ranks map it, and it is removed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_hier.parameter_server.open_ports import AllGather, agree
from lightning_hier.parameter_server.two_stage import shared_memory
from lightning_hier.parameter_server.two_stage.replica import Replica, Shape, file_size, shaped


def memory_id() -> str:
    """Text that is equal only on ranks that can share memory.

    It contains the boot of the kernel and the number of the file system, because hosts may have
    equal names, and containers on one host may have separate shared memory.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{shared_memory.FOLDER.stat().st_dev}"


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
    paths: list[Path] = []
    replicas: list[Replica] = []

    def create() -> dict[str, Any]:
        for tensors in parts if rank == first else ():
            paths.append(shared_memory.create_file(file_size(group_size, Shape.of(tensors))))
        names = [str(path) for path in paths]
        return {"memory": memory_id(), "host": socket.gethostname(), "paths": names}

    def map_all() -> None:
        for tensors, path in zip(parts, rows[first]["paths"], strict=True):
            replicas.append(Replica(Path(path), devices=group_size, shape=Shape.of(tensors)))
            if rank == first:
                for view, tensor in zip(
                    shaped(replicas[-1].weights, tensors), tensors, strict=True
                ):
                    view.copy_(tensor)

    try:
        rows = agree(exchange, create, "a node's shared memory could not be created")
        _require_one_memory(rows, group_size)
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
