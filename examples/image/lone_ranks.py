"""A launcher whose ranks continue if one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from uuid import uuid4

from examples.loopback import ADDRESS, loopback_interface, loopback_store


def run_apart(module: str, arguments: str, *, ranks: int) -> None:
    """Run ``python -m module arguments`` on every rank, and wait for all of them.

    If a rank fails, torchrun and Lightning's launcher end all other ranks of the host. Here, the
    other ranks continue, as on separate hosts. The environment variables are those of torchrun. The
    rendezvous store is in this process, so that it does not depend on any rank.

    Args:
        module: name of the module.
        arguments: command-line argument of the module, equal on all ranks.
        ranks: number of processes.

    Raises:
        RuntimeError: if no rank exits with status 0. The ranks print their errors.
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
