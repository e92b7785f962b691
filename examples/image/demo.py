"""Compare synchronous SGD with PSP-SGD on digits, with one slow rank.

python -m examples.image.demo            less than 4 minutes on 2 cores
python -m examples.image.demo --short    half a minute, too short for good accuracies
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.image.runs import Result, Settings
from examples.run_store import RunStore
from examples.tables import markdown, megabytes, percent

PLOT = Path("outputs/stragglers/accuracy.png")

FULL = Settings(system="all_reduce", epochs=20, decay_epochs=[12, 16], late_seconds=0.1)
SHORT = replace(FULL, epochs=2, decay_epochs=[], late_seconds=0.05)

TITLES = {"all_reduce": "synchronous SGD", "psp": "PSP-SGD, c = 3/4"}
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
    waited = [seconds for rank, seconds in enumerate(result.waited_s) if rank != late_rank]
    reached = (seconds for seconds, accuracy in result.curve if accuracy >= TARGET_ACCURACY)
    first = next(reached, None)
    return (
        TITLES[result.settings["system"]],
        f"{result.curve[-1][0]:.0f}",
        "-" if first is None else f"{first:.0f}",
        percent(result.test_accuracy),
        percent(result.used_share),
        f"{result.dropped_gradients:.0f}",
        f"{sum(waited) / len(waited):.1f}",
        megabytes(round(result.sent_bytes)),
    )


def plot_accuracy(results: Sequence[Result], title: str) -> None:
    """Plot the accuracy of each system over time to ``PLOT``."""
    import matplotlib

    matplotlib.use("Agg")  # does not require a display
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for result in results:
        seconds, accuracies = zip(*result.curve, strict=True)
        label = TITLES[result.settings["system"]]
        axes.plot(seconds, [100 * each for each in accuracies], marker="o", label=label)
    axes.axhline(100 * TARGET_ACCURACY, color="0.4", linewidth=1, linestyle="--")
    axes.set(xlabel="wall time, s", ylabel="accuracy of the valid split, %", title=title)
    axes.legend(loc="lower right")
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Train with each system, print the table, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--short", action="store_true", help="half a minute, to check that it works"
    )
    base = SHORT if parser.parse_args().short else FULL
    delay = f"rank {base.late_rank} of {base.ranks} is {1000 * base.late_seconds:.0f} ms late"
    print(f"Training by {', then by '.join(TITLES.values())}.")
    print(f"In every step {delay}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(
            Path(folder), module="examples.image.runs", settings=Settings, result=Result
        )
        results = store.results([base, replace(base, system="psp")])
    print(markdown(HEADER, [row(result) for result in results]))
    plot_accuracy(results, f"Digits, {base.epochs} epochs; {delay} in each step")
    print(f"\nAccuracy over wall time: {PLOT}")


if __name__ == "__main__":
    main()
