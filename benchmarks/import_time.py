"""Time of `import lightning_hier` in addition to that of torch and Lightning."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from examples.tables import markdown, spread

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


def measure(runs: int) -> list[list[float]]:
    """Return elapsed and processor times of both imports, in a new process for each run."""
    command: list[Any] = [sys.executable, "-c", CODE]
    # Write byte code and fill the disk cache.
    subprocess.run(command, check=True, capture_output=True)
    measured = []
    for _ in range(runs):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured.append(json.loads(done.stdout))
    return measured


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    before, of_before, added, of_added = zip(*measure(parser.parse_args().runs), strict=True)
    rows = [
        ("torch and Lightning", spread(of_before), spread(before)),
        ("lightning_hier in addition", spread(of_added), spread(added)),
    ]
    header = ("", "processor time in seconds, median (range)", "elapsed time in seconds")
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
