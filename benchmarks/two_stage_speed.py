"""Speed of two-stage ASGD on two emulated hosts, compared with the sizing equations and DDP.

There is one rank on each host, and the rate of the links is limited. All configurations alternate
within every repetition, so that other load on the machine affects all of them. Every ratio is that
of two speeds of the same repetition. Emulated hosts need Linux and root.

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
from benchmarks.sizing import Cluster
from benchmarks.two_stage_ranks import NEVER, Configuration, Job
from examples.tables import markdown

PERIODS = (1, 2, 4, 8)
_DEVICES = ("core", "waiting")
_LIMIT_PER_CONFIGURATION_S = 60


@dataclass(frozen=True)
class Repetition:
    """Readings of one repetition.

    Attributes:
        readings: readings of each rank, by configuration.
        link_s: seconds of a transfer of the model over the link, median of the repetition.
        model_bytes: size M of the model.
        frames: number of frames of a mini-batch.

    """

    readings: dict[Configuration, list[dict[str, float]]]
    link_s: float
    model_bytes: int
    frames: int

    def speed(self, config: Configuration) -> float:
        """Return the frames per second of all ranks together.

        Without double buffering, order-locking makes all nodes as slow as the slowest one. In a
        window of a few periods, the faster node may still be ahead.
        """
        ranks = [reading for reading in self.readings[config] if "steps" in reading]
        speeds = [self.frames * reading["steps"] / reading["seconds"] for reading in ranks]
        locked = config.system == "two_stage" and not config.double_buffering
        return len(speeds) * min(speeds) if locked else sum(speeds)

    def cluster(self, device: str) -> Cluster:
        """Return the inputs of the sizing equations.

        Only one node communicates over the link, because the other one is on the master's host.
        """
        alone = Configuration(system="alone", device=device)  # type: ignore[arg-type]
        return Cluster(
            nodes=1,
            devices=1,
            model_bytes=self.model_bytes,
            bandwidth=self.model_bytes / self.link_s,
            batch_samples=self.frames,
            device_speed=self.speed(alone),
        )

    def predicted_speed(self, config: Configuration) -> float:
        """Predict the frames per second of both nodes, which are equally fast."""
        speed = self.cluster(config.device).samples_per_second(
            config.push_period, double_buffering=config.double_buffering
        )
        return 2 * speed

    def predicted_period(self, config: Configuration) -> float:
        """Predict the seconds between two pushes of a node."""
        return self.cluster(config.device).period_seconds(
            config.push_period, double_buffering=config.double_buffering
        )

    def period(self, config: Configuration) -> float:
        """Return the measured seconds between two pushes of the remote node."""
        remote = self.readings[config][1]
        return remote["seconds"] / remote["steps"] * self.gradients_per_push(config)

    def gradients_per_push(self, config: Configuration) -> float:
        """Return the mean number of gradients in a push of the remote node."""
        remote = self.readings[config][1]
        return remote["node/gradients"] / remote["node/pushes"]

    def exchange_seconds(self, config: Configuration) -> float:
        """Return the mean seconds from a push of the remote node to the reply."""
        remote = self.readings[config][1]
        return remote["node/seconds"] / remote["node/pushes"]

    def processor_ms(self, config: Configuration, rank: int) -> float:
        """Return the processor time of a rank for a mini-batch, all threads, in milliseconds."""
        reading = self.readings[config][rank]
        return 1e3 * reading["cpu_seconds"] / reading["steps"]


Reading = Callable[[Repetition, Configuration], float]


def two_stage(device: str, push_period: int, *, double_buffering: bool = True) -> Configuration:
    """Return a configuration of two-stage ASGD."""
    return Configuration(
        system="two_stage",
        device=device,  # type: ignore[arg-type]
        push_period=push_period,
        double_buffering=double_buffering,
    )


def all_configurations() -> list[Configuration]:
    """Return all configurations in the order of the first repetition."""
    apart = Configuration(system="apart", device="core")
    configs = [apart, Configuration(system="ddp", device="core")]
    for device in _DEVICES:
        configs += [Configuration(system="alone", device=device), two_stage(device, NEVER)]  # type: ignore[arg-type]
        for period in PERIODS:
            configs += [two_stage(device, period, double_buffering=on) for on in (True, False)]
    return configs


def read_repetitions(lines: Sequence[str], frames: int) -> list[Repetition]:
    """Parse the lines that rank 0 has written."""
    rows = [json.loads(line) for line in lines]
    result = []
    for number in sorted({row["repetition"] for row in rows}):
        selected = [row for row in rows if row["repetition"] == number]
        readings = {Configuration(**row["way"]): row["ranks"] for row in selected}
        link_s = statistics.median(row["ranks"][0]["link"] for row in selected)
        result.append(Repetition(readings, link_s, selected[0]["model_bytes"], frames))
    return result


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def sizing_table(repetitions: Sequence[Repetition], device: str) -> str:
    """Return the table of measured and predicted speeds and periods."""
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
            config = two_stage(device, period, double_buffering=on)
            cells = [
                spread([reading(repetition, config) for repetition in repetitions], digits)
                for reading, digits in columns
            ]
            rows.append((str(period), "on" if on else "off", *cells))
    return markdown(header, rows)


def control_table(repetitions: Sequence[Repetition], device: str) -> str:
    """Return the table of speed and processor time, also without communication and with DDP."""
    alone = Configuration(system="alone", device=device)  # type: ignore[arg-type]
    configurations = {"one rank alone": alone}
    if device == "core":
        configurations["two ranks, each by itself"] = Configuration(system="apart", device="core")
        configurations["DDP"] = Configuration(system="ddp", device="core")
    configurations["two-stage ASGD, nothing pushed"] = two_stage(device, NEVER)
    for on in (True, False):
        for period in PERIODS:
            title = f"two-stage ASGD, N = {period}, double buffering {'on' if on else 'off'}"
            configurations[title] = two_stage(device, period, double_buffering=on)
    header = (
        "configuration",
        "frames/s",
        "of one rank alone",
        "processor ms a mini-batch, rank 0",
        "rank 1",
    )
    rows = []
    for title, config in configurations.items():
        cost = [
            spread([r.processor_ms(config, rank) for r in repetitions], 0)
            for rank in range(1 if config == alone else 2)
        ]
        speed = spread([r.speed(config) for r in repetitions], 0)
        share = spread([r.speed(config) / r.speed(alone) for r in repetitions])
        rows.append((title, speed, share, *cost, *[""] * (2 - len(cost))))
    return markdown(header, rows)


def inputs_table(repetitions: Sequence[Repetition]) -> str:
    """Return the table of the inputs of the sizing equations, and the time of an exchange."""
    rows = []
    for device in _DEVICES:
        clusters = [r.cluster(device) for r in repetitions]
        configs = [two_stage(device, period, double_buffering=False) for period in PERIODS]
        exchanges = [statistics.mean(r.exchange_seconds(c) for c in configs) for r in repetitions]
        rows.append(
            (
                device,
                spread([1e3 * cluster.computation_seconds(1) for cluster in clusters], 0),
                spread([1e3 * cluster.transmission_seconds() for cluster in clusters], 0),
                spread([1e3 * seconds for seconds in exchanges], 0),
                spread([cluster.best_push_period() for cluster in clusters], 0),
            )
        )
    header = ("device", "T_calc ms, N = 1", "T_trans ms", "an exchange ms", "best N")
    return markdown(header, rows)


def measure(job: Job, rate: str) -> None:
    """Run all configurations on two hosts. Rank 0 writes the file of the job.

    Raises:
        RuntimeError: a rank failed. The message contains the output of the hosts.
        TimeoutError: the run was not complete within the limit.

    """
    limit_s = _LIMIT_PER_CONFIGURATION_S * job.repetitions * len(job.configurations)
    with tempfile.TemporaryDirectory() as name, hosts(2, rate) as pair:
        folder, settings = Path(name), json.dumps(asdict(job))
        run_module(pair, 1, "benchmarks.two_stage_ranks", settings, folder=folder, limit_s=limit_s)


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rate", default="1gbit", help="rate of the links, for tc")
    parser.add_argument("--width", type=int, default=768, help="width of the hidden layers")
    parser.add_argument("--frames", type=int, default=256, help="frames of a mini-batch")
    parser.add_argument("--pause", type=float, default=0.07, help="seconds of a waiting device")
    parser.add_argument(
        "--out", type=Path, help="file of readings; an existing one is only printed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out: Path = options.out or Path(name) / "readings.jsonl"
        job = Job(
            configurations=all_configurations(),
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


def _ratio(numerator: Reading, denominator: Reading) -> Reading:
    return lambda repetition, config: (
        numerator(repetition, config) / denominator(repetition, config)
    )


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
