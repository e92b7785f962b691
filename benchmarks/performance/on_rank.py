"""What every module does that runs on a rank: it joins the others, measures, and writes a file."""

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
    """Write what ``measure`` finds as ``rank<number>.json``. Every rank must call it.

    Args:
        folder: of the files of all ranks.
        measure: called when all ranks have met; what it returns goes into JSON.

    """
    silence_lightning()
    torch.set_num_threads(1)
    with joined():
        found = json.dumps(measure())
        (Path(folder) / f"rank{dist.get_rank()}.json").write_text(found)
