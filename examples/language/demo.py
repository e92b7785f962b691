"""Train a small transformer by BMUF-Adam in two tiers and by DDP with AdamW, and compare them.

python -m examples.language.demo            under 4 minutes on 2 cores
python -m examples.language.demo --short    the same, too short to learn much
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from examples.language.data_module import Text
from examples.language.learning_plot import plot_learning
from examples.language.runs import SYSTEMS, Result, Settings
from examples.run_store import RunStore
from examples.tables import markdown, megabytes

PLOT = Path("outputs/language/demo.png")

FULL = Settings(system="")
SHORT = replace(FULL, steps=40, validations=2, context=64, batch_windows=4, eval_share=0.2)
COMPARED = ("bmuf_adam", "ddp")

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
        result.title,
        f"{result.valid_bits_per_byte:.3f}",
        f"{result.test_bits_per_byte:.3f}",
        megabytes(result.group_bytes) if result.group_bytes else "-",
        megabytes(result.across_bytes),
        f"{result.train_seconds:.0f}",
    )


def score_comparison(bmuf_adam: Result, ddp: Result) -> str:
    """Return a sentence that compares the scores on test and the bytes sent across groups."""
    bmuf_bits, ddp_bits = bmuf_adam.test_bits_per_byte, ddp.test_bits_per_byte
    scores = f"BMUF-Adam has {bmuf_bits:.3f} bits per byte on test and DDP {ddp_bits:.3f}"
    if f"{bmuf_bits:.3f}" == f"{ddp_bits:.3f}":
        verdict = "neither wins"
    else:
        winner = "BMUF-Adam" if bmuf_bits < ddp_bits else "DDP"
        gap = abs(bmuf_bits - ddp_bits)
        verdict = f"{winner} wins by {gap:.3f} ({100 * gap / max(bmuf_bits, ddp_bits):.1f}%)"
    bmuf_sent, ddp_sent = megabytes(bmuf_adam.across_bytes), megabytes(ddp.across_bytes)
    ratio = ddp.across_bytes / bmuf_adam.across_bytes
    # A run of a few steps has blocks of one or two steps, which send more.
    times = f"{ratio:.1f} times fewer" if ratio >= 1 else f"{1 / ratio:.1f} times more"
    equal_bytes = ddp.point_after(bmuf_adam.across_bytes) if ratio > 1 else None
    at_equal_bytes = ""
    if equal_bytes is not None:
        at_equal_bytes = (
            f"; after {megabytes(equal_bytes.across_bytes)} MB DDP has "
            f"{equal_bytes.bits_per_byte:.3f} on valid, where BMUF-Adam ends at "
            f"{bmuf_adam.valid_bits_per_byte:.3f}"
        )
    return (
        f"After equal steps and tokens {scores}: {verdict}, and BMUF-Adam sends {times} bytes "
        f"across groups ({bmuf_sent} and {ddp_sent} MB){at_equal_bytes}."
    )


def ddp_recommendation(bmuf_adam: Result, ddp: Result) -> str:
    """Return a sentence that states when DDP is the better choice."""
    reasons = []
    if ddp.test_bits_per_byte < bmuf_adam.test_bits_per_byte:
        reasons.append("learned more from the same tokens")
    if ddp.train_seconds < bmuf_adam.train_seconds:
        reasons.append(
            f"took {ddp.train_seconds:.0f} s where BMUF-Adam took {bmuf_adam.train_seconds:.0f} s"
        )
    here = f"here it {' and '.join(reasons)}" if reasons else "here it had neither advantage"
    return (
        "DDP is the better choice on one host, or where the network between hosts sends a gradient "
        "in a small part of a step's time: it averages exactly at every step and has no blocks to "
        f"set ({here})."
    )


def read_text() -> None:
    """Tokenise the text, so that the time of the first run does not include it."""
    print("Reading Python's standard library (cached for the next run) ...", flush=True)
    begun = time.perf_counter()
    size = len(Text().corpus.splits["train"])
    print(f"... {size / 1e6:.1f} MB to train on, {time.perf_counter() - begun:.0f} s\n", flush=True)


def main() -> None:
    """Train with each system, print the comparison, and plot the learning curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="half a minute, to check that it runs")
    base = SHORT if parser.parse_args().short else FULL
    read_text()
    compared = ", then by ".join(SYSTEMS[name].title for name in COMPARED)
    print(f"Training by {compared}; {base.steps} steps each\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(
            Path(folder), module="examples.language.run_systems", settings=Settings, result=Result
        )
        results = store.results([replace(base, system=name) for name in COMPARED])
    print(f"\n{markdown(HEADER, [row(result) for result in results])}\n")
    print("Bytes are those of all ranks. All of DDP's count as sent across groups, as do those")
    print("of BMUF-Adam's warm-up, which is DDP. AdamW's first beta is 0.5 for both.\n")
    print(score_comparison(*results))
    print(ddp_recommendation(*results))
    tokens = base.ranks * base.batch_windows * base.context
    plot_learning(results, PLOT, title=f"{base.steps} steps of {tokens} bytes of Python source")
    print(f"\nCurves: {PLOT}; tensorboard --logdir {base.log_dir}")


if __name__ == "__main__":
    main()
