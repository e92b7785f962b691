"""Script that trains on one rank and prints at exit whether process groups are left."""

from __future__ import annotations

import atexit
import sys
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


def main() -> None:
    """Train. If the first argument is "fail", raise an error in the first step."""
    from tests.trainer.fitting import Net, fit

    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("as asked")

    global trainer  # as in a script without a main function
    trainer = fit("bmuf", 3, Failing() if sys.argv[1] == "fail" else Net())


if __name__ == "__main__":
    main()
