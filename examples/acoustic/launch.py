"""Start a run of one system in its own processes."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from examples.acoustic.run_system import Result, Settings
from examples.acoustic.systems import ALL
from examples.torchrun import run_module


def launch(settings: Settings) -> Result:
    """Run in new processes, and return the result.

    Raises:
        RuntimeError: the run failed. Its output is on the terminal.

    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run_module(
            "examples.acoustic.run_system",
            json.dumps(asdict(replace(settings, result=str(result)))),
            ranks=ALL[settings.system].ranks(settings.ranks),
        )
        return Result(**json.loads(result.read_text()))
