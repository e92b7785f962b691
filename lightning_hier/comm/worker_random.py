"""The random numbers of the workers that one rank plays: each draws from its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from lightning_hier.comm.random_state import random_state, set_random_state


class WorkerRandom:
    """States of all generators that a worker draws from; those of worker 0 are in place.

    All begin in the state that is in place when one of them first draws, as the ranks of a job do
    that have the same seed.

    Args:
        number: workers of this rank.
        device: of the rank.

    Attributes:
        number: workers of this rank.

    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.number = number
        self._device = device
        self._away: dict[int, Any] = {}

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Draw as this worker."""
        if self.number > 1 and not self._away:
            self._away = dict.fromkeys(range(1, self.number), self._read())
        if worker == 0:
            yield
            return
        first = self._read()
        self._write(self._away[worker])
        try:
            yield
        finally:
            self._away[worker] = self._read()
            self._write(first)

    def state(self, worker: int) -> dict[str, Any]:
        """Of a worker, as :func:`random_state` gives it."""
        with self.of(worker):
            return random_state(self._device)

    def states(self) -> list[dict[str, Any]]:
        """Of each worker."""
        return [self.state(worker) for worker in range(self.number)]

    def set_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Put each worker's generators into what :meth:`states` gave."""
        for worker, state in enumerate(states):
            with self.of(worker):
                set_random_state(state, self._device)

    def _read(self) -> Any:
        # Not by `random_state`: the plain values, which files want, take twice as long.
        on_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_device

    def _write(self, state: Any) -> None:
        python, own, cpu, on_device = state
        random.setstate(python)
        np.random.set_state(own)
        torch.set_rng_state(cpu)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, self._device)
