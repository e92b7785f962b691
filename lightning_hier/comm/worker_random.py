"""States of random generators of a rank and of its virtual workers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class WorkerRandom:
    """Generator states of each worker of a rank. The states of worker 0 are active.

    All workers start from the state that is active when one of them first draws, like the ranks of
    a job with one seed.

    Args:
        number: workers of this rank.
        device: device of the rank.

    Attributes:
        number: workers of this rank.

    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self._device = device
        self._saved: dict[int, Any] = {}

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Activate the generator states of this worker in the body."""
        # At the first use, because the user may seed the generators before training.
        if self.number > 1 and not self._saved:
            self._saved = dict.fromkeys(range(1, self.number), self._read())
        if worker == 0:
            yield
            return
        # Worker 0 has no saved state: between two workers, its state is that of the process.
        first = self._read()
        self._write(self._saved[worker])
        try:
            yield
        finally:
            self._saved[worker] = self._read()
            self._write(first)

    def state(self, worker: int) -> dict[str, Any]:
        """State of a worker, in the form of :func:`random_state`."""
        with self.of(worker):
            return random_state(self._device)

    def states(self) -> list[dict[str, Any]]:
        """State of each worker."""
        return [self.state(worker) for worker in range(self.number)]

    def set_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Restore the states of all workers from :meth:`states`."""
        for worker, state in enumerate(states):
            # At its end, the context saves what was set.
            with self.of(worker):
                set_random_state(state, self._device)

    def _read(self) -> Any:
        # The format of `random_state`, for files, would take twice as long.
        on_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device

    def _write(self, state: Any) -> None:
        python, numpy, cpu, on_device = state
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, self._device)


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the generators of Python, NumPy, torch and, on CUDA, of ``device``.

    It contains only tensors, numbers and strings, so that ``weights_only=True`` can load it.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": name,
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Set all generators to a state of :func:`random_state` on a device of this type."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            numpy["name"],
            numpy["keys"].numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached"],
        )
    )
    torch.set_rng_state(state["torch"])
    # A state that was saved on the CPU has none: the generator of the device stays as it is.
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
