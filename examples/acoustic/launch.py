"""Start a run of one system on as many processes as it needs."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from examples.acoustic.run_system import Result, Settings
from examples.acoustic.systems import ALL
from examples.torchrun import run_module


def launch(settings: Settings) -> Result:
    """Run and wait.

    Raises:
        RuntimeError: the run failed; its output has been shown.

    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run_module(
            "examples.acoustic.run_system",
            json.dumps(asdict(replace(settings, result=str(result)))),
            ranks=ALL[settings.system].ranks(settings.ranks),
        )
        return Result(**json.loads(result.read_text()))
