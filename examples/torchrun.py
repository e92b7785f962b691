"""Start a module of the examples on as many processes as it needs."""

from __future__ import annotations

import os
import subprocess
import sys

from examples.loopback import ADDRESS, free_port, loopback_interface


def run_module(module: str, arguments: str, *, ranks: int) -> None:
    """Run ``python -m module arguments`` on every rank, by torchrun, and wait.

    Args:
        module: its dotted name.
        arguments: one string, the same for all ranks.
        ranks: processes; one is started without torchrun.

    Raises:
        RuntimeError: the run failed; its output has been shown.

    """
    command = [sys.executable, "-W", "ignore", "-m", module, arguments]
    if ranks > 1:
        # Not --standalone: its agents unpickle what lies in a store that anybody may write to.
        meeting = [f"--master-addr={ADDRESS}", f"--master-port={free_port()}"]
        torchrun = ["-m", "torch.distributed.run", *meeting, f"--nproc-per-node={ranks}"]
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
