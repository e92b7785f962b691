"""The process of one rank, which `tests.ranks` starts."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

STACKS_SIGNAL = signal.SIGUSR2


def pack(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """Pickle a call by value. The pickler of multiprocessing would put tensors in shared memory."""
    return pickle.dumps((function, args, kwargs))


def main(pipe: Connection, call: bytes, environment: dict[str, str], stacks: str) -> None:
    """Run `call` in `environment` and send one report through `pipe`.

    A rank with a result then waits for a message of the parent before it ends, so that its
    connections stay open while other ranks still run. A rank that failed ends at once, as in a job.
    """
    _end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    with Path(stacks).open("w") as stacks_file:
        faulthandler.register(STACKS_SIGNAL, file=stacks_file, all_threads=True)
        report, succeeded = _run_call(call)
        pipe.send_bytes(report)
        if not succeeded:
            sys.stdout.flush()
            sys.stderr.flush()
            # Without exit handlers, which might wait for peers that have not noticed the failure.
            os._exit(1)
        pipe.poll(None)


def _run_call(call: bytes) -> tuple[bytes, bool]:
    try:
        function, args, kwargs = pickle.loads(call)
        result = function(*args, **kwargs)
        return pickle.dumps({"result": result, "ended_at_s": time.monotonic()}), True
    except BaseException as error:  # every error is reported, also SystemExit
        report = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "ended_at_s": time.monotonic(),
        }
        return pickle.dumps(report), False


def _end_with_parent() -> None:
    """Start a new process group, and kill it when the process of the tests has ended.

    The fork server cannot do this, because it runs as long as its last rank.
    """
    os.setpgid(0, 0)
    threading.Thread(target=_kill_group_after_parent, daemon=True).start()


def _kill_group_after_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)
