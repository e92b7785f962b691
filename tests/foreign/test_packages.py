"""Tests that models of other people's packages train under every strategy, beside DDP.

`make test-foreign` runs them in the environment of each package, and keeps results for the report.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.environments import PACKAGES, REPOSITORY
from tests.ranks import RankError, run_ranks

PACKAGE = os.environ.get("FOREIGN_PACKAGE", "")
RESULTS = REPOSITORY / "outputs" / "foreign"
SEEDS = range(int(os.environ.get("FOREIGN_SEEDS", "3")))
SERVERS = ("psp", "two_stage_asgd")
STRATEGIES = (
    "ddp",
    "gtc",
    "model_averaging",
    "bmuf",
    "bmuf_adam",
    "bmuf_gtc",
    "diloco",
    *SERVERS,
)
# BMUF-Adam refuses SGD, which lightly uses.
UNFIT = {("lightly", "bmuf_adam")}
Plain = Callable[[int, "Path | None"], dict[str, Any]]

pytestmark = pytest.mark.foreign


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    """Evaluate a checkpoint in plain Lightning, or without a path the model before training."""
    command = [sys.executable, "-m", "tests.foreign.plain"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout

        def evaluate(seed: int, path: Path | None) -> dict[str, Any]:
            call = {"package": PACKAGE, "seed": seed, "path": path and str(path)}
            print(json.dumps(call), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield evaluate
        process.stdin.close()


@pytest.mark.timeout(1800)
@pytest.mark.skipif(PACKAGE not in PACKAGES, reason="needs a package: run make test-foreign")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_package(strategy: str, tmp_path: Path, plain: Plain) -> None:
    if (PACKAGE, strategy) in UNFIT:
        pytest.skip("does not fit the package's optimizer")
    result: dict[str, Any] = {"package": PACKAGE, "strategy": strategy, "losses": [], "faults": []}
    result["version"] = importlib.metadata.version(re.split(r"[\[=]", PACKAGES[PACKAGE])[0])
    result["commit"] = _commit()
    try:
        _train(strategy, tmp_path, plain, result)
    except (RankError, TimeoutError) as error:
        result["faults"].append(str(error))
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{PACKAGE}-{strategy}.json").write_text(json.dumps(result, indent=1))
    assert not result["faults"], "\n\n".join(result["faults"])


def _train(strategy: str, folder: Path, plain: Plain, result: dict[str, Any]) -> None:
    """Train with every seed, and resume the run of the first."""
    result["initial"] = plain(SEEDS[0], None).get("loss")
    for seed in SEEDS:
        # bmuf_gtc compresses inside a group, so that its two groups have two ranks each.
        devices = 2 if strategy == "bmuf_gtc" else 1
        place = folder / str(seed)
        run = partial(
            run_ranks, _rank, 2 * devices, PACKAGE, strategy, seed, place, devices,
            ranks_per_node=devices,
        )  # fmt: skip
        ranks = run()
        loaded = plain(seed, place / "last.ckpt")
        result["losses"].append(loaded.get("loss"))
        if strategy == "ddp":
            continue
        result["faults"] += _faults(ranks, loaded)
        if seed == SEEDS[0]:
            result["lines"] = ranks[0]["lines"]
            resumed = run(resume=True)
            result["resumed_lines"] = resumed[0]["lines"]
            result["faults"] += _faults(resumed, plain(seed, place / "resumed.ckpt"))
            result["resumed"] = _resumed(ranks[0], resumed[0])
            if result["resumed"] == "differs" and strategy not in SERVERS:
                result["faults"].append("resumes with other weights, and says nothing")


def _commit() -> str:
    """Return the commit that is tested, with "+" if files have changed since."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    return done.stdout.strip()


def _rank(*args: Any, **kwargs: Any) -> dict[str, Any]:
    # The module is imported on ranks only: it imports lightning_hier.
    from tests.foreign.training import train

    return train(*args, **kwargs)


def _faults(ranks: list[dict[str, Any]], loaded: dict[str, Any]) -> list[str]:
    """Return what is wrong: ranks that differ, or a checkpoint that plain Lightning can't read."""
    faults = []
    if len({rank["tensors"] for rank in ranks}) > 1:
        faults.append("ranks have different weights after fit")
    if "error" in loaded:
        faults.append(f"its checkpoint does not load in plain Lightning: {loaded['error']}")
    elif loaded["state"] != ranks[0]["state"]:
        faults.append("its checkpoint has other weights than the module after fit")
    return faults


def _resumed(run: dict[str, Any], resumed: dict[str, Any]) -> str:
    """Return "exact", "announced" or "differs"."""
    if run["tensors"] == resumed["tensors"]:
        return "exact"
    said = any(line.startswith("this resume is not exact") for line in resumed["lines"])
    return "announced" if said else "differs"
