"""Start a module on ranks of which one may die without the others."""

from __future__ import annotations

import os
import subprocess
import sys
from uuid import uuid4

from examples.loopback import ADDRESS, loopback_interface, loopback_store


def run_apart(module: str, arguments: str, *, ranks: int) -> None:
    """Run ``python -m module arguments`` on every rank and wait, whatever becomes of the others.

    torchrun, like Lightning's own launcher, ends all ranks of a host when one dies. Here each rank
    is as alone as on a host of its own; its environment is the one that torchrun would make, and
    the store at which the ranks meet lives in this process, so that it outlives every rank.

    Args:
        module: its dotted name.
        arguments: one string, the same for all ranks.
        ranks: processes.

    Raises:
        RuntimeError: no rank ended well; their output has been shown.
    """
    store = loopback_store()
    shared = {
        **os.environ,
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(store.port),
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": uuid4().hex,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, "-m", module, arguments]
    processes = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(ranks)
    ]
    try:
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if 0 not in statuses:
        raise RuntimeError(f"{module} on {ranks} ranks ended with statuses {statuses}")
