"""Script of test_launchers: trains two ranks of one device, and saves the model of each.

Each process prints at exit whether process groups are left. That of a user's command starts
another one before, which trains alone and fails.
"""

from __future__ import annotations

import atexit
import os
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


def main(folder: Path, name: str) -> None:
    """Train and validate with the strategy of this name."""
    from lightning_hier.strategies.registry import PRESETS
    from tests.trainer.fitting import Net, loader, make_trainer, weights

    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("as asked")

    global trainer  # as in a script without a main function
    os.environ |= {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"}  # for make_trainer
    if "LOCAL_RANK" not in os.environ and _forks():
        trainer = make_trainer("bmuf")
        trainer.fit(Failing(), loader(3, ranks=1))
    trainer, model = make_trainer(PRESETS[name](ranks_per_device=2)), Net()
    trainer.fit(model, loader(5, ranks=2), loader(2, ranks=2))
    torch.save((weights(model), trainer.world_size), folder / f"{trainer.global_rank}.pt")


def _forks() -> bool:
    """Start a process, and return whether this is the one. The other prints its status."""
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        print("status", os.waitstatus_to_exitcode(status), flush=True)
    return not pid


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
