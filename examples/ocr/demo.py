"""Train a text line model on rendered lines by BMUF-Adam and by synchronous Adam, and compare.

python -m examples.ocr.demo            under 6 minutes on 2 cores
python -m examples.ocr.demo --short    the same, too short to learn much
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
# Synchronous Adam takes means of four gradients, and so larger steps; beta1 as is usual.
SYNCHRONOUS: dict[str, Any] = {"system": "sync_adam", "beta1": 0.9, "learning_rate": 8e-3}

HEADER = ("strategy", "CER", "WER", "CER with LM", "WER with LM", "MB sent", "seconds")


def row(result: Result) -> tuple[str, ...]:
    """One line of the table."""
    return (
        TITLES[result.settings["system"]],
        percent(result.test_cer),
        percent(result.test_wer),
        _if_known(result.test_cer_lm),
        _if_known(result.test_wer_lm),
        megabytes(result.model_bytes),
        f"{result.train_seconds:.0f}",
    )


def _if_known(share: float) -> str:
    return "-" if math.isnan(share) else percent(share)


def main() -> None:
    """Render, train twice, print lines and table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="a minute, to see that it runs")
    base = SHORT if parser.parse_args().short else FULL
    print("Rendering lines of text (kept for the next time) ...", flush=True)
    begun = time.perf_counter()
    lines = TextLines(corpus_args=base.corpus_args, height=base.height).train
    print(f"... {len(lines)} lines to train on, {time.perf_counter() - begun:.0f} s\n", flush=True)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for settings in (base, replace(base, **SYNCHRONOUS)):
            print(f"Training by {TITLES[settings.system]}, {settings.workers} ranks", flush=True)
            results += RunStore(Path(folder)).results([settings])
    print("\nLines of the test split, and what BMUF-Adam's model reads:\n")
    for reference, hypothesis in results[0].lines:
        print(f"  {reference}\n  {hypothesis}\n")
    print(markdown(HEADER, [row(result) for result in results]))
    print(f"\nPictures and curves: tensorboard --logdir {LOG_DIR}")


if __name__ == "__main__":
    main()
