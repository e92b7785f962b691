"""Ranks on emulated hosts that measure what rank 0's link carries out of it and into it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from benchmarks.joined import joined
from benchmarks.performance.link import measure_goodput


def main() -> None:
    """Write both into the folder; arguments: folder and bytes."""
    folder, nbytes = Path(sys.argv[1]), int(sys.argv[2])
    with joined():
        found = {"out": measure_goodput(nbytes, 0, 1), "in": measure_goodput(nbytes, 2, 0)}
        if dist.get_rank() == 0:
            (folder / "goodput.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
