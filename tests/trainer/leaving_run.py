"""A process that trains alone and says at its very end whether process groups are left."""

from __future__ import annotations

import atexit
import sys
from typing import Any

import torch
import torch.distributed as dist

# Registered before anything of the strategy, hence called after it.
atexit.register(lambda: print("groups left:", dist.is_initialized(), flush=True))


def main() -> None:
    """Fit, or fail in the middle of it where the first argument says so."""
    from tests.trainer.fitting import Net, fit

    class Failing(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("as asked")

    fit("bmuf", 3, Failing() if sys.argv[1] == "fail" else Net())


if __name__ == "__main__":
    main()
