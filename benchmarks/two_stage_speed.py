"""Speed of two-stage ASGD on two emulated hosts beside the sizing equations and DDP, in one run.

One rank on each host; the link between the hosts is shaped. All ways to train take turns within
every repetition, so that whatever else the machine does meets all of them, and every ratio is one
of two speeds of the same repetition. Needs root and Linux, for the hosts.

    python -m benchmarks.two_stage_speed
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning
import torch

from benchmarks.hosts import hosts
from benchmarks.launch import run_module
from benchmarks.two_stage_ranks import NEVER, Job, Way
from examples.tables import markdown
from lightning_hier.algorithms.sizing import Cluster

PERIODS = (1, 2, 4, 8)
_DEVICES = ("core", "waiting")
_SECONDS_FOR_A_WAY = 60


@dataclass(frozen=True)
class Repetition:
    """What one repetition has measured.

    Attributes:
        found: by way, what each rank counted in its window.
        link_s: for the model over the link, once, by a bare transfer; median of this repetition.
        model_bytes: M.
        frames: of a mini-batch.

    """

    found: dict[Way, list[dict[str, float]]]
    link_s: float
    model_bytes: int
    frames: int

    def speed(self, way: Way) -> float:
        """Frames per second of all ranks together, each by its own clock.

        Without double buffering order-locking keeps the nodes at one pace, that of the slower one;
        in a window of a few periods the other one may still have its head start.
        """
        ranks = [own for own in self.found[way] if "steps" in own]
        speeds = [self.frames * own["steps"] / own["seconds"] for own in ranks]
        locked = way.system == "two_stage" and not way.double_buffering
        return len(speeds) * min(speeds) if locked else sum(speeds)

    def cluster(self, device: str) -> Cluster:
        """What the sizing equations are told: one node crosses the link, the master's does not."""
        alone = Way(system="alone", device=device)  # type: ignore[arg-type]
        return Cluster(
            nodes=1,
            devices=1,
            model_bytes=self.model_bytes,
            bandwidth=self.model_bytes / self.link_s,
            batch_samples=self.frames,
            device_speed=self.speed(alone),
        )

    def predicted_speed(self, way: Way) -> float:
        """Frames per second of both nodes: the master's keeps the pace of the one that crosses."""
        speed = self.cluster(way.device).samples_per_second(
            way.push_period, double_buffering=way.double_buffering
        )
        return 2 * speed

    def predicted_period(self, way: Way) -> float:
        """Seconds from one push of a node to its next."""
        return self.cluster(way.device).period_seconds(
            way.push_period, double_buffering=way.double_buffering
        )

    def period(self, way: Way) -> float:
        """The same, of the node that crosses the link, as measured."""
        own = self.found[way][1]
        return own["seconds"] / own["steps"] * self.gradients_per_push(way)

    def gradients_per_push(self, way: Way) -> float:
        """Of the node that crosses the link."""
        own = self.found[way][1]
        return own["node/gradients"] / own["node/pushes"]

    def exchange_seconds(self, way: Way) -> float:
        """From a push to its answer, of the node that crosses the link."""
        own = self.found[way][1]
        return own["node/seconds"] / own["node/pushes"]

    def processor_ms(self, way: Way, rank: int) -> float:
        """Processor time of a rank for a mini-batch, all its threads together."""
        own = self.found[way][rank]
        return 1e3 * own["cpu_seconds"] / own["steps"]


Reading = Callable[[Repetition, Way], float]


def two_stage(device: str, push_period: int, *, double_buffering: bool = True) -> Way:
    """Two-stage ASGD on such devices."""
    return Way(
        system="two_stage",
        device=device,  # type: ignore[arg-type]
        push_period=push_period,
        double_buffering=double_buffering,
    )


def all_ways() -> list[Way]:
    """In the order of the first repetition."""
    ways = [Way(system="apart", device="core"), Way(system="ddp", device="core")]
    for device in _DEVICES:
        ways += [Way(system="alone", device=device), two_stage(device, NEVER)]  # type: ignore[arg-type]
        for period in PERIODS:
            ways += [two_stage(device, period, double_buffering=on) for on in (True, False)]
    return ways


def read_repetitions(lines: Sequence[str], frames: int) -> list[Repetition]:
    """Out of the lines that rank 0 has written."""
    rows = [json.loads(line) for line in lines]
    result = []
    for number in sorted({row["repetition"] for row in rows}):
        own = [row for row in rows if row["repetition"] == number]
        found = {Way(**row["way"]): row["ranks"] for row in own}
        link_s = statistics.median(row["ranks"][0]["link"] for row in own)
        result.append(Repetition(found, link_s, own[0]["model_bytes"], frames))
    return result


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def sizing_table(repetitions: Sequence[Repetition], device: str) -> str:
    """Speed and period beside what the sizing equations say."""
    header = ("N", "double buffering", "predicted frames/s", "frames/s", "of the predicted",
              "predicted period s", "period s", "of the predicted", "gradients a push")  # fmt: skip
    columns = [
        (Repetition.predicted_speed, 0),
        (Repetition.speed, 0),
        (_ratio(Repetition.speed, Repetition.predicted_speed), 2),
        (Repetition.predicted_period, 2),
        (Repetition.period, 2),
        (_ratio(Repetition.period, Repetition.predicted_period), 2),
        (Repetition.gradients_per_push, 1),
    ]
    rows = []
    for on in (True, False):
        for period in PERIODS:
            way = two_stage(device, period, double_buffering=on)
            cells = [
                spread([reading(repetition, way) for repetition in repetitions], digits)
                for reading, digits in columns
            ]
            rows.append((str(period), "on" if on else "off", *cells))
    return markdown(header, rows)


def control_table(repetitions: Sequence[Repetition], device: str) -> str:
    """What does not exchange, and DDP, beside two-stage ASGD, and the processor time of each."""
    alone = Way(system="alone", device=device)  # type: ignore[arg-type]
    ways = {"one rank alone": alone}
    if device == "core":
        ways["two ranks, each by itself"] = Way(system="apart", device="core")
        ways["DDP"] = Way(system="ddp", device="core")
    ways["two-stage ASGD, nothing pushed"] = two_stage(device, NEVER)
    for on in (True, False):
        for period in PERIODS:
            title = f"two-stage ASGD, N = {period}, double buffering {'on' if on else 'off'}"
            ways[title] = two_stage(device, period, double_buffering=on)
    header = ("way", "frames/s", "of one rank alone", "processor ms a mini-batch, rank 0", "rank 1")
    rows = []
    for title, way in ways.items():
        cost = [
            spread([r.processor_ms(way, rank) for r in repetitions], 0)
            for rank in range(1 if way == alone else 2)
        ]
        speed = spread([r.speed(way) for r in repetitions], 0)
        share = spread([r.speed(way) / r.speed(alone) for r in repetitions])
        rows.append((title, speed, share, *cost, *[""] * (2 - len(cost))))
    return markdown(header, rows)


def inputs_table(repetitions: Sequence[Repetition]) -> str:
    """What the sizing equations were told, and how long an exchange took."""
    rows = []
    for device in _DEVICES:
        told = [r.cluster(device) for r in repetitions]
        waiting = [two_stage(device, period, double_buffering=False) for period in PERIODS]
        taken = [statistics.mean(r.exchange_seconds(way) for way in waiting) for r in repetitions]
        rows.append(
            (
                device,
                spread([1e3 * cluster.computation_seconds(1) for cluster in told], 0),
                spread([1e3 * cluster.transmission_seconds() for cluster in told], 0),
                spread([1e3 * seconds for seconds in taken], 0),
                spread([cluster.best_push_period() for cluster in told], 0),
            )
        )
    header = ("device", "T_calc ms, N = 1", "T_trans ms", "an exchange ms", "best N")
    return markdown(header, rows)


def measure(job: Job, rate: str) -> None:
    """Run all ways on two hosts; the ranks write the file of the job.

    Raises:
        RuntimeError: a rank failed; what the hosts have put out.
        TimeoutError: the ranks came to no end.

    """
    limit_s = _SECONDS_FOR_A_WAY * job.repetitions * len(job.ways)
    with tempfile.TemporaryDirectory() as name, hosts(2, rate) as pair:
        folder, told = Path(name), json.dumps(asdict(job))
        run_module(pair, 1, "benchmarks.two_stage_ranks", told, folder=folder, limit_s=limit_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5, help="of every way")
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc reads it")
    parser.add_argument("--width", type=int, default=768, help="of the hidden layers")
    parser.add_argument("--frames", type=int, default=256, help="of a mini-batch")
    parser.add_argument("--pause", type=float, default=0.07, help="of a waiting device, seconds")
    parser.add_argument("--out", type=Path, help="file of readings; if there is one, it is shown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out: Path = options.out or Path(name) / "readings.jsonl"
        job = Job(
            ways=all_ways(),
            repetitions=options.repetitions,
            width=options.width,
            frames=options.frames,
            computed_frames=8,
            pause_s=options.pause,
            out=str(out.resolve()),
        )
        if not out.exists():
            measure(job, options.rate)
        repetitions = read_repetitions(out.read_text().splitlines(), options.frames)
    print(_heading(repetitions, options.rate), end="\n\n")
    print(inputs_table(repetitions), end="\n\n")
    for device in _DEVICES:
        print(f"{device}:\n\n{sizing_table(repetitions, device)}\n")
        print(f"{control_table(repetitions, device)}\n")


def _ratio(above: Reading, below: Reading) -> Reading:
    return lambda repetition, way: above(repetition, way) / below(repetition, way)


def _heading(repetitions: Sequence[Repetition], rate: str) -> str:
    first = repetitions[0]
    return (
        f"Link {rate}, model {first.model_bytes / 1e6:.1f} MB, mini-batches of {first.frames} "
        f"frames, {len(repetitions)} repetitions; median (quartiles).\n"
        f"Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
