"""Several cases at a time, each worker a process with a server of its own to fork ranks from."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Iterator
from queue import Empty
from typing import Any

from tests.fuzz.checking import Verdict, check
from tests.fuzz.drawing import draw

_LOOK_S = 5.0


def verdicts(first: int, workers: int, until_s: float) -> Iterator[tuple[int, Verdict]]:
    """Seeds from ``first`` on and their verdicts, as they come, until ``time.monotonic()``."""
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
                seed, verdict = results.get(timeout=_LOOK_S)
            except Empty:
                if any(process.exitcode for process in processes):
                    raise RuntimeError(
                        "a worker of the fuzzer died: what it did is above"
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
    # A parent that was killed cannot end its workers.
    while time.monotonic() < until_s and parent is not None and parent.is_alive():
        try:
            verdict = check(draw(seed))
        except Exception:  # a fault of the fuzzer: reported as any other
            verdict = Verdict("of the fuzzer itself", "see below", True, traceback.format_exc())
        results.put((seed, verdict))
        seed += stride
    results.put((seed, None))
