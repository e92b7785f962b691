"""Memory of this process as counted by Linux, and memory of its tensors."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Reset the peak of resident memory to its present value."""
    gc.collect()
    (_PROCESS / "clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the peak of resident memory since :func:`reset_peak`."""
    return _status("VmHWM")


def resident_bytes() -> int:
    """Return the resident memory."""
    return _status("VmRSS")


def tensor_bytes() -> int:
    """Return the memory of all CPU tensors of this process. Shared storage counts once."""
    gc.collect()
    storages = {}
    for item in gc.get_objects():
        if isinstance(item, torch.Tensor) and item.device.type == "cpu":
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _status(name: str) -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")
