"""Start a run of one system on as many processes as it needs, by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from examples.acoustic.run_system import Result, Settings
from examples.acoustic.systems import SYSTEMS


def launch(settings: Settings) -> Result:
    """Run and wait.

    Raises:
        RuntimeError: the run failed; its output has been shown.

    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = json.dumps(asdict(replace(settings, result=str(result))))
        ranks = SYSTEMS[settings.system].ranks(settings.ranks)
        command = [sys.executable, "-W", "ignore", "-m", "examples.acoustic.run_system", arguments]
        if ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            command = [sys.executable, *torchrun, *command[3:]]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore",
        }
        status = subprocess.run(command, env=environment, check=False).returncode
        if status:
            raise RuntimeError(f"training {settings.system} ended with status {status}")
        return Result(**json.loads(result.read_text()))
