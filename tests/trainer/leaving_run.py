"""A process that trains alone and says at its very end whether process groups are left."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def _gloo_threads() -> int:
    return sum("gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


def _tell() -> None:
    print("groups left:", dist.is_initialized(), "gloo threads left:", _gloo_threads() > 0)


# Registered before anything of the strategy, hence called after it.
atexit.register(_tell)


trainer: Any = None


def main() -> None:
    """Fit, or fail in the middle of it where the first argument says so."""
    from tests.trainer.fitting import Net, fit

    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("as asked")

    global trainer  # as in a script without a main function
    trainer = fit("bmuf", 3, Failing() if sys.argv[1] == "fail" else Net())


if __name__ == "__main__":
    main()
