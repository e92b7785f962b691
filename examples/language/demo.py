"""Train a small transformer by BMUF-Adam in two tiers and by DDP with AdamW, and compare them.

python -m examples.language.demo            under 4 minutes on 2 cores
python -m examples.language.demo --short    the same, too short to learn much
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from examples.language.data_module import Text
from examples.language.runs import Result, Settings
from examples.run_store import RunStore
from examples.tables import markdown, megabytes

PLOT = Path("outputs/language/demo.png")

FULL = Settings(system="bmuf_adam")
SHORT = replace(FULL, steps=40, validations=2, context=64, batch_windows=4, eval_share=0.2)

TITLES = {"bmuf_adam": "BMUF-Adam, 2 groups of 2", "ddp": "DDP, 4 ranks"}
HEADER = (
    "system",
    "bits per byte, valid",
    "bits per byte, test",
    "MB inside groups",
    "MB across groups",
    "seconds",
)


def row(result: Result) -> tuple[str, ...]:
    """Return the row of a result in the table."""
    return (
        TITLES[result.settings["system"]],
        f"{result.points[-1].bits_per_byte:.3f}",
        f"{result.test_bits_per_byte:.3f}",
        megabytes(result.group_bytes) if result.group_bytes else "-",
        megabytes(result.points[-1].across_bytes),
        f"{result.train_seconds:.0f}",
    )


def comparison(bmuf_adam: Result, ddp: Result) -> str:
    """Return sentences that compare scores and bytes, and state when DDP is the better choice."""
    bmuf_bits, ddp_bits = bmuf_adam.test_bits_per_byte, ddp.test_bits_per_byte
    winner = "BMUF-Adam" if bmuf_bits < ddp_bits else "DDP"
    gap = abs(bmuf_bits - ddp_bits)
    sent, ddp_sent = bmuf_adam.points[-1].across_bytes, ddp.points[-1].across_bytes
    # A run of a few steps has blocks of one or two steps, which send more.
    times = f"{ddp_sent / sent:.1f} times fewer" if ddp_sent >= sent else (
        f"{sent / ddp_sent:.1f} times more"
    )  # fmt: skip
    return (
        f"After equal steps and tokens BMUF-Adam has {bmuf_bits:.3f} bits per byte on test and DDP "
        f"{ddp_bits:.3f}: {winner} wins by {gap:.3f} ({100 * gap / max(bmuf_bits, ddp_bits):.1f}%)"
        f", and BMUF-Adam sends {times} bytes across groups ({megabytes(sent)} and "
        f"{megabytes(ddp_sent)} MB).\nDDP is the better choice on one host, or where the network "
        "between hosts sends a gradient in a small part of a step's time: it averages exactly at "
        "every step and has no blocks to set."
    )


def plot_learning(results: Sequence[Result], title: str) -> None:
    """Plot bits per byte over the steps and over the bytes sent to ``PLOT``."""
    import matplotlib

    matplotlib.use("Agg")  # works without a display
    from matplotlib import pyplot

    figure, (over_steps, over_bytes) = pyplot.subplots(
        1, 2, figsize=(9, 4), sharey=True, layout="constrained"
    )
    for result in results:
        steps, sent, bits = zip(*result.points, strict=True)
        over_steps.plot(steps, bits, marker="o", label=TITLES[result.settings["system"]])
        over_bytes.plot([each / 1e6 for each in sent], bits, marker="o")
    over_steps.set(xlabel="steps of each rank", ylabel="bits per byte of the valid split")
    over_bytes.set(xlabel="MB sent across groups, all ranks (log scale)", xscale="log")
    over_steps.legend(loc="upper right")
    figure.suptitle(title)
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=150)
    pyplot.close(figure)


def main() -> None:
    """Train with each system, print the comparison, and plot the learning curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="half a minute, to check that it runs")
    base = SHORT if parser.parse_args().short else FULL
    # Tokenise the text here, so that the time of the first run does not include it.
    print("Reading Python's standard library (cached for the next run) ...", flush=True)
    begun = time.perf_counter()
    size = len(Text().corpus.splits["train"])
    print(f"... {size / 1e6:.1f} MB to train on, {time.perf_counter() - begun:.0f} s\n", flush=True)
    print(
        f"Training by {', then by '.join(TITLES.values())}; {base.steps} steps each\n", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(
            Path(folder), module="examples.language.runs", settings=Settings, result=Result
        )
        results = store.results([base, replace(base, system="ddp")])
    print(f"\n{markdown(HEADER, [row(result) for result in results])}\n")
    print("Bytes are those of all ranks. All of DDP's count as sent across groups, as do those")
    print("of BMUF-Adam's warm-up, which is DDP. AdamW's first beta is 0.5 for both.\n")
    print(comparison(*results))
    tokens = base.ranks * base.batch_windows * base.context
    plot_learning(results, f"{base.steps} steps of {tokens} bytes of Python source")
    print(f"\nCurves: {PLOT}")


if __name__ == "__main__":
    main()
