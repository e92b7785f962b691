"""Compare elastic groups with restarts of the whole job, while ranks are killed frequently.

    python -m benchmarks.elastic                      three runs of 20 minutes, and further seeds
    python -m benchmarks.elastic --minutes 2 --short  fewer seeds and more kills, under 8 minutes
    python -m benchmarks.elastic --fragments 2 --overlap 5 --groups_only    with a delay, 45 minutes

Four groups of one rank train on this machine. Every 30 s, a random one is killed by SIGKILL at a
random time, and restarted at once. The kills are the same in both runs with kills. The run without
kills takes as long, with the first seed. Runs with further seeds make as many steps, without
emulated computation. Logs and results are written into the output folder, whose content is removed
first. The exit code is 1 if a result is not as required.
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
    """Run all configurations, and write the results."""
    options = _parser().parse_args()
    setup = Setup(
        groups=options.groups,
        block_size=options.block_size,
        fragments=options.fragments,
        overlap=options.overlap,
        step_s=options.step_s,
        heartbeat_timeout_s=options.heartbeat_timeout_s,
        join_timeout_s=options.join_timeout_s,
    )
    seconds, every_s = 60 * options.minutes, 15.0 if options.short else options.every_s
    kills = draw_kills(options.seed, seconds=seconds, every_s=every_s, groups=options.groups)
    shutil.rmtree(options.out, ignore_errors=True)
    environment = setting(shlex.join(["python", "-m", "benchmarks.elastic", *sys.argv[1:]]))

    def measured(name: str, kind: Any, setup: Setup, **values: Any) -> Measures:
        print(f"{name} ...", flush=True)
        record = run(kind, options.out / name.replace(" ", "_"), setup, **values)
        return measure(record, setup, independent=kind is Groups)

    limits = {"seed": options.seed, "seconds": seconds}
    runs = {WITHOUT: measured(WITHOUT, Groups, setup, **limits)}
    seeds = [runs[WITHOUT]]
    _write(options.out, environment, runs, seeds)
    under_kills: dict[str, Any] = {STORM: Groups}
    if not options.groups_only:
        under_kills[RESTARTED] = WholeJob
    for name, kind in under_kills.items():
        runs[name] = measured(name, kind, setup, kills=kills, **limits)
        _write(options.out, environment, runs, seeds)
    steps = runs[WITHOUT].synchronisations * setup.block_size
    fast = replace(setup, step_s=0.0)
    for seed in range(options.seed + 1, options.seed + (2 if options.short else 3)):
        seeds.append(measured(f"seed {seed}", Groups, fast, seed=seed, steps=steps))
        _write(options.out, environment, runs, seeds)
    print((options.out / "storm.md").read_text())
    faults = problems(runs[WITHOUT], runs[STORM], seeds)
    print("\n".join(faults) or "All results are as required.")
    return bool(faults)


def _write(
    out: Path, environment: dict[str, Any], runs: dict[str, Measures], seeds: list[Measures]
) -> None:
    results = {
        "runs": {name: asdict(measures) for name, measures in runs.items()},
        "losses_of_seeds": [measures.loss for measures in seeds],
    }
    (out / "storm.json").write_text(json.dumps(environment | results, indent=1) + "\n")
    lines = [f"- {name}: {value}" for name, value in environment.items()]
    parts = ["\n".join(lines), table(runs), losses(runs, seeds)]
    (out / "storm.md").write_text("\n\n".join(parts) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Setup()
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="minutes of each run (%(default)s)"
    )
    parser.add_argument("--short", action="store_true", help="a kill every 15 s, and two seeds")
    parser.add_argument(
        "--every_s", type=float, default=30.0, help="seconds between kills (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of kills, model and data")
    parser.add_argument("--groups", type=int, default=default.groups)
    parser.add_argument("--block_size", type=int, default=default.block_size)
    parser.add_argument("--fragments", type=int, default=default.fragments)
    parser.add_argument("--overlap", type=int, default=default.overlap)
    parser.add_argument(
        "--groups_only", action="store_true", help="without the job that is restarted as a whole"
    )
    parser.add_argument("--step_s", type=float, default=default.step_s)
    parser.add_argument("--heartbeat_timeout_s", type=float, default=default.heartbeat_timeout_s)
    parser.add_argument("--join_timeout_s", type=float, default=default.join_timeout_s)
    parser.add_argument("--out", type=Path, default=Path("outputs/elastic/storm"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
