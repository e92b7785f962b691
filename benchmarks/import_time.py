"""Time of `import lightning_hier` in addition to that of torch and Lightning."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

# In one process, in the order in which a user's script imports the packages.
CODE = """
import json, time
def clocks(): return time.perf_counter(), time.process_time()
begin = clocks()
import torch, lightning.pytorch
before = clocks()
import lightning_hier
after = clocks()
print(json.dumps([b - a for start, end in ((begin, before), (before, after))
                  for a, b in zip(start, end)]))
"""
COLUMNS = (
    "torch and Lightning, s",
    "of the processor, s",
    "lightning_hier beyond, s",
    "of the processor, s",
)


def measure(runs: int) -> list[list[float]]:
    """Measure the times of ``COLUMNS``, in a new process for each run."""
    command: list[Any] = [sys.executable, "-c", CODE]
    # Write byte code and fill the disk cache.
    subprocess.run(command, check=True, capture_output=True)
    measured = []
    for _ in range(runs):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured.append(json.loads(done.stdout))
    return measured


def main() -> None:
    """Print the median and the range of each column."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    columns = zip(*measure(parser.parse_args().runs), strict=True)
    for name, values in zip(COLUMNS, columns, strict=True):
        middle = statistics.median(values)
        print(f"{name:>26}: {middle:.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
