"""Runs several cases in parallel. Each worker is a process that forks ranks from its own server."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Iterator
from queue import Empty
from typing import Any

from tests.fuzz.checking import Verdict, check
from tests.fuzz.drawing import draw

_POLL_S = 5.0


def verdicts(first: int, workers: int, until_s: float) -> Iterator[tuple[int, Verdict]]:
    """Yield seeds from ``first`` and their verdicts in order of completion.

    Args:
        first: the first seed.
        workers: number of worker processes.
        until_s: time of ``time.monotonic()`` after which no case starts.

    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=_work, args=(first + own, workers, until_s, results))
        for own in range(workers)
    ]
    for process in processes:
        process.start()
    running = workers
    try:
        while running:
            try:
                seed, verdict = results.get(timeout=_POLL_S)
            except Empty:
                if any(process.exitcode for process in processes):
                    raise RuntimeError(
                        "a worker of the fuzzer died; see its output above"
                    ) from None
                continue
            running -= verdict is None
            if verdict is not None:
                yield seed, verdict
    finally:
        for process in processes:
            if running:
                process.kill()
            process.join()


def _work(first: int, stride: int, until_s: float, results: Any) -> None:
    seed, parent = first, multiprocessing.parent_process()
    # Checked here, because a parent that was killed cannot end its workers.
    while time.monotonic() < until_s and parent is not None and parent.is_alive():
        try:
            verdict = check(draw(seed))
        except Exception:  # an error of the fuzzer, which is reported as a failed case
            verdict = Verdict("of the fuzzer itself", "see below", True, traceback.format_exc())
        results.put((seed, verdict))
        seed += stride
    results.put((seed, None))
