"""A store of processes, whose answers are awaited for a limited time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError
from threading import Thread
from typing import Any, TypeVar

_LIMIT_S = 10.0
_Answer = TypeVar("_Answer")


class NoAnswerError(RuntimeError):
    """Another process has not answered in time."""


def within(limit_s: float | None, ask: Callable[[], _Answer]) -> _Answer:
    """The result of a native call, from a thread, because Python cannot interrupt a wait inside it.

    Args:
        limit_s: time limit, where the call has none of its own.
        ask: the call.

    Raises:
        NoAnswerError: it took longer.

    """
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError:
        if answer.done():  # it is the error of the call
            raise
        raise NoAnswerError(f"no answer within {limit_s:g} s") from None


class JobStore:
    """Texts by key, which all ranks of a job, or the ranks of two groups, share.

    The process that hosts the store may be stopped, or its host gone. torch has no limit then. All
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

        def read() -> str | None:
            # `get` alone would wait for the key up to the time limit of the store.
            return self._store.get(key).decode() if self._store.check([key]) else None

        return self._answer(read)

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a text."""
        return self._answer(lambda: bool(self._store.check(list(keys))))

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer:
        self._require_answers()
        try:
            return within(_LIMIT_S, ask)
        except NoAnswerError:
            self._answers = False  # and never again, because the thread holds its lock
            raise

    def _require_answers(self) -> None:
        if not self._answers:
            raise NoAnswerError(f"no answer within {_LIMIT_S:g} s")
