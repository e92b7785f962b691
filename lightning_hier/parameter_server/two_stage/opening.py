"""Shared memory of a group: one rank creates a file, all ranks map it, and it is removed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_hier.comm.flat import FlatView
from lightning_hier.parameter_server.two_stage import shared_memory
from lightning_hier.parameter_server.two_stage.replica import Replica, Shape, file_size

AllGather = Callable[[Any], list[Any]]
"""Every rank's value (anything that JSON can say), in order of rank: a collective of the world."""


def memory_id() -> str:
    """The same on two ranks if, and only if, they see one and the same shared memory.

    The boot of the kernel and the file system in it: hosts may have equal names, and containers on
    one host need not share memory.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{shared_memory.FOLDER.stat().st_dev}"


def open_replicas(
    parts: Sequence[Sequence[Tensor]], *, group_size: int, rank: int, exchange: AllGather
) -> list[Replica]:
    """Map a replica of each part's tensors, with their present values, shared by each group.

    The files have no name when this returns, so nothing is left behind however the ranks end. Every
    rank of the world must call it.

    Args:
        parts: for each optimizer its tensors.
        group_size: ranks of a group: consecutive ones.
        rank: this rank.
        exchange: all-gather over the world.

    Raises:
        RuntimeError: on every rank, if a group spans several hosts, if there is not enough shared
            memory, or if a rank can't open the file of its group.

    """
    first = rank - rank % group_size
    paths: list[Path] = []
    try:
        problem = _attempt(lambda: paths.extend(_create(parts, group_size, makes=rank == first)))
        rows = exchange(_introduction(paths, problem))
        _raise_any([*_scattered(rows, group_size), *(one["problem"] for one in rows)])
        found: list[Replica] = []
        problem = _attempt(lambda: found.extend(_map(parts, rows[first]["paths"], group_size)))
        if rank == first and not problem:
            for replica, tensors in zip(found, parts, strict=True):
                read_values_(tensors, replica.weights)
        _raise_any([text and f"rank {own}: {text}" for own, text in enumerate(exchange(problem))])
        return found
    finally:
        for path in paths:
            shared_memory.remove_file(path)


@torch.no_grad()
def read_values_(tensors: Sequence[Tensor], out: Tensor) -> None:
    """Copy the tensors into ``out``, 1-D, one behind the other."""
    view = FlatView([tensor.detach() for tensor in tensors])
    view.read_(0, len(view), out)


def _introduction(paths: Sequence[Path], problem: str) -> dict[str, Any]:
    return {
        "memory": memory_id(),
        "host": socket.gethostname(),
        "paths": [str(path) for path in paths],
        "problem": problem,
    }


def _create(parts: Sequence[Sequence[Tensor]], devices: int, *, makes: bool) -> list[Path]:
    made: list[Path] = []
    try:
        for tensors in parts if makes else ():
            made.append(shared_memory.create_file(file_size(devices, Shape.of(tensors))))
    except OSError:
        for path in made:
            shared_memory.remove_file(path)
        raise
    return made


def _map(parts: Sequence[Sequence[Tensor]], paths: Sequence[str], devices: int) -> list[Replica]:
    return [
        Replica(Path(path), devices=devices, shape=Shape.of(tensors))
        for tensors, path in zip(parts, paths, strict=True)
    ]


def _attempt(act: Callable[[], None]) -> str:
    try:
        act()
    except OSError as error:
        return str(error)
    return ""


def _scattered(rows: Sequence[dict[str, Any]], group_size: int) -> list[str]:
    problems = []
    for first in range(0, len(rows), group_size):
        group = rows[first : first + group_size]
        if len({one["memory"] for one in group}) > 1:
            hosts = ", ".join(f"rank {first + i} on {one['host']}" for i, one in enumerate(group))
            problems.append(
                f"the ranks of a group must share memory, but these do not: {hosts}; set "
                "group_size='node', and let containers of one host share /dev/shm"
            )
    return problems


def _raise_any(problems: Sequence[str]) -> None:
    found = sorted({problem for problem in problems if problem})
    if found:
        raise RuntimeError(" | ".join(found))
