"""Compare synchronous SGD with PSP-SGD on digits, with one slow rank.

python -m examples.image.demo            less than 4 minutes on 2 cores
python -m examples.image.demo --short    half a minute, too short for good accuracies
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from examples.image.accuracy_plot import plot_accuracy
from examples.image.runs import Result, Settings
from examples.image.systems import SYSTEMS
from examples.run_store import RunStore
from examples.tables import markdown, megabytes, percent

PLOT = Path("outputs/stragglers/accuracy.png")

FULL = Settings(system="", epochs=20, decay_epochs=[12, 16], learning_rate=0.02, late_seconds=0.1)
SHORT = replace(FULL, epochs=2, decay_epochs=[], late_seconds=0.05)
COMPARED = ("all_reduce", "three_quarters")

TARGET_ACCURACY = 0.97
HEADER = (
    "strategy",
    "seconds",
    f"s to {percent(TARGET_ACCURACY)}",
    "test accuracy",
    "batches used",
    "gradients dropped",
    "s waited by a fast rank",
    "MB sent",
)


def row(result: Result) -> tuple[str, ...]:
    """Return the row of the table for a result."""
    late_rank = result.settings["late_rank"]
    waited = [rank["waited_s"] for rank in result.ranks if rank["rank"] != late_rank]
    return (
        SYSTEMS[result.settings["system"]].title,
        f"{result.train_seconds:.0f}",
        seconds_to(TARGET_ACCURACY, result),
        percent(result.test_accuracy),
        percent(result.used_share),
        f"{result.dropped_gradients:.0f}",
        f"{sum(waited) / len(waited):.1f}",
        megabytes(round(result.sent_bytes)),
    )


def seconds_to(target: float, result: Result) -> str:
    """Return the seconds until the first validation with at least the ``target`` accuracy."""
    reached = (seconds for seconds, accuracy in result.curve if accuracy >= target)
    first = next(reached, None)
    return "-" if first is None else f"{first:.0f}"


def main() -> None:
    """Train with each system, print the table, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--short", action="store_true", help="half a minute, to check that it works"
    )
    base = SHORT if parser.parse_args().short else FULL
    delay = f"rank {base.late_rank} of {base.ranks} is {1000 * base.late_seconds:.0f} ms late"
    print(f"Training by {', then by '.join(SYSTEMS[name].title for name in COMPARED)}.")
    print(f"In every step {delay}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(
            Path(folder), module="examples.image.run_systems", settings=Settings, result=Result
        )
        results = store.results([replace(base, system=system) for system in COMPARED])
    print(markdown(HEADER, [row(result) for result in results]))
    curves = {SYSTEMS[result.settings["system"]].title: result.curve for result in results}
    title = f"Digits, {base.epochs} epochs; {delay} in each step"
    plot_accuracy(curves, PLOT, title=title, level=TARGET_ACCURACY)
    print(f"\nAccuracy over wall time: {PLOT}")


if __name__ == "__main__":
    main()
