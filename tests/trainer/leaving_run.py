"""Script that trains on one rank and prints at exit whether process groups are left.

It does so twice, in processes of its own: one ends well, and one fails.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _gloo_threads() -> int:
    return sum("gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


def _print_what_is_left() -> None:
    print("groups left:", dist.is_initialized(), "gloo threads left:", _gloo_threads() > 0)


# Registered before all handlers of the strategy, so that it runs after them.
atexit.register(_print_what_is_left)
trainer: Any = None


def main(end: str) -> None:
    """Train. If ``end`` is "fail", raise an error in the first step."""
    from tests.trainer.fitting import Net, fit

    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("as asked")

    global trainer  # as in a script without a main function
    trainer = fit("bmuf", 3, Failing() if end == "fail" else Net())


def _forks(end: str) -> bool:
    """Start a process, and return whether this is the one. The other prints its status."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        print(f"{end}: status {os.waitstatus_to_exitcode(status)}", flush=True)
    return not pid


if __name__ == "__main__":
    import tests.trainer.fitting  # noqa: F401 - imported once for both processes

    own = next((end for end in ("well", "fail") if _forks(end)), None)
    if own is None:
        os._exit(0)
    main(own)
