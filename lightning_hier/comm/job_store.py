"""The store of the job, whose answers are awaited for a limited time."""

from __future__ import annotations

from concurrent.futures import Future, TimeoutError
from threading import Thread
from typing import Any

_LIMIT_S = 10.0


class JobStore:
    """Texts by key, which all ranks of the job share.

    The process that hosts the store may be stopped, or its host gone. torch has no limit then. Both
    methods raise RuntimeError if the store does not answer, or is gone.

    Args:
        store: ``torch.distributed.Store``.

    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._answers = True

    def set(self, key: str, text: str) -> None:
        """Set the text of a key, without waiting for an answer."""
        self._require_answers()
        self._store.set(key, text)

    def get(self, key: str) -> str | None:
        """The text of a key, or None if it has none yet."""
        self._require_answers()
        answer: Future[str | None] = Future()

        def read() -> None:
            try:
                # `get` alone would wait for the key up to the time limit of the store.
                known = self._store.check([key])
                answer.set_result(self._store.get(key).decode() if known else None)
            except Exception as error:
                answer.set_exception(error)

        Thread(target=read, daemon=True).start()
        try:
            return answer.result(_LIMIT_S)
        except TimeoutError:
            self._answers = False  # and never again, because the thread holds its lock
        self._require_answers()
        return None

    def _require_answers(self) -> None:
        if not self._answers:
            raise RuntimeError(f"no answer within {_LIMIT_S:g} s")
