"""Memory of this process, as Linux counts it, and what its tensors hold."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

_PROCESS = Path("/proc/self")


def forget_peak() -> None:
    """Let the peak begin anew from what is held now."""
    gc.collect()
    (_PROCESS / "clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that was resident since :func:`forget_peak`."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """What is resident now."""
    return _status("VmRSS")


def tensor_bytes() -> int:
    """What all tensors that Python knows of hold; storage that several share counts once."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        # A DTensor has no storage of its own; the tensor that it holds is found by itself.
        if isinstance(found, DTensor):
            continue
        if isinstance(found, torch.Tensor) and found.device.type == "cpu":
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _status(name: str) -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")
