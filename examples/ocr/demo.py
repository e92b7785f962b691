"""Compare BMUF-Adam with synchronous Adam on rendered lines of text.

python -m examples.ocr.demo            less than 6 minutes on 2 cores
python -m examples.ocr.demo --short    one minute, too short for good error rates
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.ocr.data_module import TextLines
from examples.ocr.run_store import RunStore
from examples.ocr.run_systems import TITLES, Result, Settings
from examples.tables import markdown, megabytes, percent

LOG_DIR = "outputs/ocr/demo"

FULL = Settings(
    system="corrected",
    corpus_args={"train_lines": 2000, "valid_lines": 100, "test_lines": 120},
    epochs=11,
    decay_epochs=4,
    beta1=0.5,
    log_dir=LOG_DIR,
    show=True,
)
SHORT = replace(
    FULL,
    corpus_args={"train_lines": 160, "valid_lines": 16, "test_lines": 16},
    epochs=2,
    decay_epochs=1,
)
# Synchronous Adam averages four gradients, which allows a larger learning rate. beta1 is the usual
# one.
SYNCHRONOUS: dict[str, Any] = {"system": "sync_adam", "beta1": 0.9, "learning_rate": 8e-3}

HEADER = ("strategy", "CER", "WER", "CER with LM", "WER with LM", "MB sent", "seconds")


def row(result: Result) -> tuple[str, ...]:
    """Return the row of the table for a result."""
    return (
        TITLES[result.settings["system"]],
        percent(result.test_cer),
        percent(result.test_wer),
        _percent_or_dash(result.test_cer_lm),
        _percent_or_dash(result.test_wer_lm),
        megabytes(result.model_bytes),
        f"{result.train_seconds:.0f}",
    )


def _percent_or_dash(rate: float) -> str:
    return "-" if math.isnan(rate) else percent(rate)


def main() -> None:
    """Render lines, train with both systems, and print recognised lines and a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="one minute, to check that it works")
    base = SHORT if parser.parse_args().short else FULL
    print("Rendering lines of text (cached for later runs) ...", flush=True)
    begun = time.perf_counter()
    lines = TextLines(corpus_args=base.corpus_args, height=base.height).train
    print(f"... {len(lines)} training lines, {time.perf_counter() - begun:.0f} s\n", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for settings in (base, replace(base, **SYNCHRONOUS)):
            print(f"Training by {TITLES[settings.system]}, {settings.workers} ranks", flush=True)
            results += RunStore(Path(folder)).results([settings])
    print("\nLines of the test split, and the hypotheses of the model of BMUF-Adam:\n")
    for reference, hypothesis in results[0].lines:
        print(f"  {reference}\n  {hypothesis}\n")
    print(markdown(HEADER, [row(result) for result in results]))
    print(f"\nImages and curves: tensorboard --logdir {LOG_DIR}")


if __name__ == "__main__":
    main()
