"""Start a module on several ranks of this machine, which fork after its imports and share them.

``run_module`` starts one process. It imports the module once, then forks the ranks, so that they
start in the time of one. Each needs memory of its own while it trains: 64 ranks of a small model
need more than 20 GB.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import subprocess
import sys
import time
from uuid import uuid4

from torch.multiprocessing.spawn import start_processes

from examples.loopback import ADDRESS, loopback_interface, loopback_store

LIMIT_S = 12 * 3600.0
"""Default time limit. The longest job of a study takes a few hours."""


def run_module(module: str, arguments: str, *, ranks: int, limit_s: float = LIMIT_S) -> None:
    """Run ``python -m module arguments`` on every rank, and wait for all of them.

    If a rank fails, the others are stopped.

    Args:
        module: name of the module. Its import must not start threads.
        arguments: single argument of the module, the same on all ranks.
        ranks: number of processes.
        limit_s: time limit in seconds.

    Raises:
        RuntimeError: a rank failed, or the time limit was reached. The error is on the terminal.

    """
    command = [sys.executable, "-W", "ignore", "-m", "examples.ranks", module, arguments]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHONWARNINGS": "ignore",
    }
    command += [str(ranks), str(limit_s)]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise RuntimeError(f"{module} on {ranks} ranks ended with status {status}")


def fork_ranks(module: str, arguments: str, ranks: int, limit_s: float) -> None:
    """Import a module, and run it on forked ranks, with the environment that torchrun sets.

    Raises:
        ProcessRaisedException: a rank failed. The message has its number and traceback.
        TimeoutError: the ranks were not done in time.

    """
    importlib.import_module(module)
    store = loopback_store()
    if ranks > 1:
        os.environ |= {
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(store.port),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": uuid4().hex,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    sys.argv = [module, arguments]
    # The garbage collector of a rank would otherwise copy the pages of all imported objects.
    gc.collect()
    gc.freeze()
    processes = start_processes(_rank, (module,), ranks, join=False, start_method="fork")
    deadline_s = time.monotonic() + limit_s
    # Each call returns when one more rank is done, and raises the error of a rank that failed.
    while not processes.join(max(0.0, deadline_s - time.monotonic())):
        if time.monotonic() >= deadline_s:
            for process in processes.processes:
                process.kill()
            raise TimeoutError(f"{module} on {ranks} ranks was not done within {limit_s:g} s")


def _rank(rank: int, module: str) -> None:
    if "WORLD_SIZE" in os.environ:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    fork_ranks(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
