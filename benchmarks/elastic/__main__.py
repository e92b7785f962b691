"""A storm of kills over groups that come and go, and over one job that is restarted as a whole.

    python -m benchmarks.elastic                      20 minutes for each of three runs, and seeds
    python -m benchmarks.elastic --minutes 2 --short  fewer seeds and more kills, under 8 minutes

Four groups of one rank train on this machine. A random one is killed by SIGKILL every 30 s, at a
random time, and started again at once. The kills are the same in both runs that have them. The run
without kills is as long, with the first seed. Runs with further seeds make as many steps, without
the emulated computation. Logs and results are written into the output folder, whose content is
removed first. The exit code is 1 if something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.elastic.measures import Measures, measure
from benchmarks.elastic.report import losses, problems, setting, table
from benchmarks.elastic.schedule import draw_kills
from benchmarks.elastic.supervised import Groups, Setup, WholeJob, run

WITHOUT, STORM, RESTARTED = "without kills", "groups that come and go", "restart of the whole job"


def main() -> int:
    """Run everything, and write the results."""
    asked = _parser().parse_args()
    setup = Setup(
        groups=asked.groups,
        block_size=asked.block_size,
        step_s=asked.step_s,
        heartbeat_timeout_s=asked.heartbeat_timeout_s,
        join_timeout_s=asked.join_timeout_s,
    )
    seconds, every_s = 60 * asked.minutes, 15.0 if asked.short else asked.every_s
    kills = draw_kills(asked.seed, seconds=seconds, every_s=every_s, groups=asked.groups)
    shutil.rmtree(asked.out, ignore_errors=True)
    how = setting(shlex.join(["python", "-m", "benchmarks.elastic", *sys.argv[1:]]))

    def measured(name: str, kind: Any, setup: Setup, **values: Any) -> Measures:
        print(f"{name} ...", flush=True)
        record = run(kind, asked.out / name.replace(" ", "_"), setup, **values)
        return measure(record, setup, independent=kind is Groups)

    limits = {"seed": asked.seed, "seconds": seconds}
    runs = {WITHOUT: measured(WITHOUT, Groups, setup, **limits)}
    seeds = [runs[WITHOUT]]
    _write(asked.out, how, runs, seeds)
    for name, kind in ((STORM, Groups), (RESTARTED, WholeJob)):
        runs[name] = measured(name, kind, setup, kills=kills, **limits)
        _write(asked.out, how, runs, seeds)
    steps = runs[WITHOUT].synchronisations * setup.block_size
    fast = replace(setup, step_s=0.0)
    for seed in range(asked.seed + 1, asked.seed + (2 if asked.short else 3)):
        seeds.append(measured(f"seed {seed}", Groups, fast, seed=seed, steps=steps))
        _write(asked.out, how, runs, seeds)
    print((asked.out / "storm.md").read_text())
    found = problems(runs[WITHOUT], runs[STORM], seeds)
    print("\n".join(found) or "Everything is as it should be.")
    return bool(found)


def _write(
    out: Path, how: dict[str, Any], runs: dict[str, Measures], seeds: list[Measures]
) -> None:
    results = {
        "runs": {name: asdict(own) for name, own in runs.items()},
        "losses_of_seeds": [own.loss for own in seeds],
    }
    (out / "storm.json").write_text(json.dumps(how | results, indent=1) + "\n")
    lines = [f"- {name}: {value}" for name, value in how.items()]
    parts = ["\n".join(lines), table(runs), losses(runs, seeds)]
    (out / "storm.md").write_text("\n\n".join(parts) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Setup()
    parser.add_argument("--minutes", type=float, default=20.0, help="of each run (%(default)s)")
    parser.add_argument("--short", action="store_true", help="a kill every 15 s, and two seeds")
    parser.add_argument("--every_s", type=float, default=30.0, help="between kills (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of kills, model and data")
    parser.add_argument("--groups", type=int, default=default.groups)
    parser.add_argument("--block_size", type=int, default=default.block_size)
    parser.add_argument("--step_s", type=float, default=default.step_s)
    parser.add_argument("--heartbeat_timeout_s", type=float, default=default.heartbeat_timeout_s)
    parser.add_argument("--join_timeout_s", type=float, default=default.join_timeout_s)
    parser.add_argument("--out", type=Path, default=Path("outputs/elastic/storm"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
