"""The inside of one rank's process, started by `tests.ranks`."""

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
    """Pickle a call by value: multiprocessing's own pickler would put tensors in shared memory."""
    return pickle.dumps((function, args, kwargs))


def main(pipe: Connection, call: bytes, environment: dict[str, str], stacks: str) -> None:
    """Carry out `call` in `environment` and send one report through `pipe`.

    A rank with a result then waits for the parent's word before it ends, so that its connections
    stay open while others still work. A rank that failed ends at once, as it would in a job.
    """
    _live_no_longer_than_parent()
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    with Path(stacks).open("w") as stacks_file:
        faulthandler.register(STACKS_SIGNAL, file=stacks_file, all_threads=True)
        report, succeeded = _carry_out(call)
        pipe.send_bytes(report)
        if not succeeded:
            sys.stdout.flush()
            sys.stderr.flush()
            # No exit handlers: they might wait for peers that know nothing of the failure.
            os._exit(1)
        pipe.poll(None)


def _carry_out(call: bytes) -> tuple[bytes, bool]:
    try:
        function, args, kwargs = pickle.loads(call)
        result = function(*args, **kwargs)
        return pickle.dumps({"result": result, "ended_at_s": time.monotonic()}), True
    except BaseException as error:  # a rank reports whatever ends it, SystemExit too
        report = {
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "ended_at_s": time.monotonic(),
        }
        return pickle.dumps(report), False


def _live_no_longer_than_parent() -> None:
    """Lead a process group of its own, and end it when the tests are killed.

    The fork server cannot see to that: it lives as long as its last rank.
    """
    os.setpgid(0, 0)
    threading.Thread(target=_kill_group_after_parent, daemon=True).start()


def _kill_group_after_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)
