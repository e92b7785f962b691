"""Compare BMUF-Adam with synchronous Adam on rendered lines of text.

python -m examples.ocr.demo            5 to 8 minutes on 2 cores
python -m examples.ocr.demo --short    one minute, too short for good error rates
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from examples.ocr.runs import Result, Settings
from examples.run_store import RunStore
from examples.tables import markdown, megabytes, percent

FULL = Settings(
    system="bmuf_adam",
    corpus_args={"train_lines": 2000, "valid_lines": 100, "test_lines": 120},
    epochs=11,
    decay_epochs=4,
)
SHORT = replace(
    FULL,
    corpus_args={"train_lines": 160, "valid_lines": 16, "test_lines": 16},
    epochs=2,
    decay_epochs=1,
)
TITLES = {"bmuf_adam": "BMUF-Adam", "sync_adam": "synchronous Adam"}
HEADER = ("strategy", "CER", "WER", "MB sent", "seconds")


def row(result: Result) -> tuple[str, ...]:
    """Return the row of the table for a result."""
    return (
        TITLES[result.settings["system"]],
        percent(result.test_cer),
        percent(result.test_wer),
        megabytes(result.sent_bytes),
        f"{result.train_seconds:.0f}",
    )


def main() -> None:
    """Train with both systems, and print recognised lines and a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="one minute, to check that it works")
    base = SHORT if parser.parse_args().short else FULL
    # Synchronous Adam averages four gradients, which allows a larger learning rate. beta1 is the
    # usual one.
    synchronous = replace(base, system="sync_adam", beta1=0.9, learning_rate=8e-3)
    lines = base.corpus_args["train_lines"]
    print(f"Training on {lines} rendered lines by {' and by '.join(TITLES.values())}.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder), module="examples.ocr.runs", settings=Settings, result=Result)
        results = store.results([base, synchronous])
    print("\nLines of the test split, and the hypotheses of the model of BMUF-Adam:\n")
    for reference, hypothesis in results[0].lines:
        print(f"  {reference}\n  {hypothesis}\n")
    print(markdown(HEADER, [row(result) for result in results]))


if __name__ == "__main__":
    main()
