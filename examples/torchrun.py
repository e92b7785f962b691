"""Start a module of the examples on several ranks."""

from __future__ import annotations

import os
import subprocess
import sys

from examples.loopback import ADDRESS, free_port, loopback_interface


def run_module(module: str, arguments: str, *, ranks: int) -> None:
    """Run ``python -m module arguments`` on every rank with torchrun, and wait.

    Args:
        module: name of the module.
        arguments: single argument of the module, the same on all ranks.
        ranks: number of processes. A single process is started without torchrun.

    Raises:
        RuntimeError: the run failed. Its output is on the terminal.

    """
    command = [sys.executable, "-W", "ignore", "-m", module, arguments]
    if ranks > 1:
        # Not --standalone, because its agents unpickle data of a store that listens on all
        # interfaces.
        rendezvous = [f"--master-addr={ADDRESS}", f"--master-port={free_port()}"]
        torchrun = ["-m", "torch.distributed.run", *rendezvous, f"--nproc-per-node={ranks}"]
        command = [sys.executable, *torchrun, "-m", module, arguments]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": loopback_interface(),
        "PYTHONWARNINGS": "ignore",
    }
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise RuntimeError(f"{module} on {ranks} ranks ended with status {status}")
