"""A thread beside the main one that turns until it is told to stop, or fails."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import torch


class BackgroundThread(ABC):
    """Runs :meth:`_turn` again and again in a thread of its own.

    Args:
        name: of the thread.

    """

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        # A daemon, so that an error in the main thread never leaves a process behind.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run_once(self) -> None:
        """Do a little; wait for a fraction of a second at most."""

    def _fail(self, error: Exception) -> None:
        """Take note that the thread ends by ``error``."""
        self._failure = error

    def start(self) -> None:
        """Begin to turn."""
        self._thread.start()

    def stop(self, limit_s: float = 10.0) -> None:
        """End the thread and wait for it.

        Raises:
            RuntimeError: it did not end within ``limit_s`` seconds.

        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        if self._thread.is_alive():
            raise RuntimeError(f"the thread {self._thread.name} did not end within {limit_s:g} s")

    def check(self) -> None:
        """Raise, in the calling thread, what has ended this one."""
        if self._failure is not None:
            raise self._failure

    @torch.no_grad()
    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_once()
        except Exception as error:
            self._fail(error)
