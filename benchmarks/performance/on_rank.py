"""Entry point of benchmarks on a rank: join the process group, measure, and write the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from benchmarks.joined import joined
from examples.quiet import silence_lightning


@record
def report(folder: str, measure: Callable[[], Any]) -> None:
    """Write the result of ``measure`` into ``rank<number>.json``. All ranks must call it.

    Args:
        folder: folder of the files of all ranks.
        measure: called in an initialised process group. Its result is written as JSON.

    """
    silence_lightning()
    torch.set_num_threads(1)
    with joined():
        result = json.dumps(measure())
        (Path(folder) / f"rank{dist.get_rank()}.json").write_text(result)
