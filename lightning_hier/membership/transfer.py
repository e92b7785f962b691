"""Copies the files of a checkpoint from a group that trains to one that joins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from lightning_hier.comm.agreement import broadcast_json
from lightning_hier.membership.connections import (
    LossOfGroups,
    open_store,
    process_group,
    wait_for_all,
)

# Bytes that are read and sent at once. The time limit holds for each piece, however large the
# state is.
_PIECE = 16 << 20


def send_folder(
    folder: Path, store: Store, address: str, name: str, *, host: str, timeout: timedelta
) -> None:
    """Send all files of a folder to the group that calls :func:`receive_folder`.

    Args:
        folder: folder of the checkpoint.
        store: store of this group.
        address: ``host:port`` of the store of the other group.
        name: name of the transfer, the same on both sides, and another one for each transfer.
        host: IP address of this rank.
        timeout: time limit of the connection, and of every piece.

    Raises:
        GroupLostError: the other group was lost.

    """
    with LossOfGroups().explaining((), "sending the state to a group that joins"):
        wait_for_all(store, name, 0, 2, [address], timeout)
        peer = process_group(name, 0, 2, store, host, timeout)
        sizes = _sizes(folder)
        header = torch.frombuffer(bytearray(json.dumps(sizes).encode()), dtype=torch.uint8)
        _send(torch.tensor([len(header)]), peer)
        _send(header, peer)
        for relative in sizes:
            for piece in _pieces(folder / relative):
                _send(piece, peer)


def receive_folder(folder: Path, address: str, name: str, *, host: str, timeout: timedelta) -> None:
    """Receive the files of :func:`send_folder` into an existing, empty folder.

    Args:
        folder: folder of the checkpoint.
        address: ``host:port`` of the store of the other group.
        name: name of the transfer, the same on both sides.
        host: IP address of this rank.
        timeout: time limit of the connection, and of every piece.

    Raises:
        GroupLostError: the other group was lost.
        ValueError: the other group has sent a path outside of the folder.

    """
    with LossOfGroups().explaining((), "receiving the state of another group"):
        store = open_store(address, timeout)
        wait_for_all(store, name, 1, 2, [address], timeout)
        peer = process_group(name, 1, 2, store, host, timeout)
        length = _received(torch.empty(1, dtype=torch.int64), peer)
        header = _received(torch.empty(int(length), dtype=torch.uint8), peer)
        for relative, size in json.loads(header.numpy().tobytes()).items():
            # A path with ".." would overwrite files of this user.
            path = (folder / relative).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise ValueError(f"another group has sent the path {relative!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, size, _PIECE):
                    piece = torch.empty(min(_PIECE, size - start), dtype=torch.uint8)
                    file.write(_received(piece, peer).numpy().tobytes())


def share_folder(folder: Path, source: int, *, writes: bool, device: torch.device) -> None:
    """Copy the files that one rank has in a folder to the other hosts of its group.

    A collective of the job: all ranks must call it.

    Args:
        folder: folder, which exists on all hosts.
        source: rank whose files are copied.
        writes: whether this rank writes the files.
        device: device of collectives.

    """
    is_source = dist.get_rank() == source
    sizes = broadcast_json(_sizes(folder) if is_source else None, source, device)
    for relative, size in sizes.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        pieces = _pieces(path) if is_source else iter(())
        # All ranks receive every piece, and one rank of each other host writes it.
        with path.open("wb") if writes and not is_source else nullcontext() as file:
            for start in range(0, size, _PIECE):
                empty = torch.empty(min(_PIECE, size - start), dtype=torch.uint8)
                piece = next(pieces, empty).to(device)
                dist.broadcast(piece, source)
                if file is not None:
                    file.write(piece.cpu().numpy().tobytes())


def _sizes(folder: Path) -> dict[str, int]:
    """Size in bytes of each file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def _pieces(path: Path) -> Iterator[Tensor]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield torch.frombuffer(bytearray(piece), dtype=torch.uint8)


def _send(tensor: Tensor, peer: dist.ProcessGroup) -> None:
    work = dist.isend(tensor, group=peer, group_dst=1)
    assert work is not None
    work.wait()


def _received(tensor: Tensor, peer: dist.ProcessGroup) -> Tensor:
    work = dist.irecv(tensor, group=peer, group_src=0)
    assert work is not None
    work.wait()
    return tensor
