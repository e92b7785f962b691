"""Train an acoustic model on synthesised speech by BMUF_GTC and by DDP, and compare them.

python -m examples.acoustic.demo            under 6 minutes on 2 cores
python -m examples.acoustic.demo --short    the same, too short to learn much
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.launch import launch
from examples.acoustic.run_system import Settings
from examples.array_cache import default_cache_dir
from examples.tables import markdown, megabytes, percent

LOG_DIR = "outputs/acoustic/demo"

FULL = Settings(
    system="ddp",
    epochs=24,
    decay_epochs=6,
    batch_frames=256,
    density=0.1,
    block_size=10,
    log_dir=LOG_DIR,
)
SHORT = replace(FULL, epochs=2, decay_epochs=1, corpus_args={"sentences": 150})

# What suits each, by trial: compressed gradients arrive late and want smaller steps.
LEARNING_RATES = {"bmuf_gtc": 0.5, "ddp": 1.0}

HEADER = ("strategy", "frame errors", "word errors", "MB in groups", "MB across", "seconds")


def main() -> None:
    """Synthesise, train twice, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="a minute, to see that it runs")
    base = SHORT if parser.parse_args().short else FULL
    print("Synthesising speech (kept for the next time) ...", flush=True)
    begun = time.perf_counter()
    build_synthetic_corpus(cache_dir=default_cache_dir(), **base.corpus_args)
    print(f"... {time.perf_counter() - begun:.0f} s\n", flush=True)
    rows = []
    for system, label in (("bmuf_gtc", "bmuf_gtc, 2 groups of 2"), ("ddp", "ddp, 4 ranks")):
        print(f"Training with {label}", flush=True)
        result = launch(replace(base, system=system, learning_rate=LEARNING_RATES[system]))
        rows.append(
            (
                label,
                percent(result.frame_error_rate),
                percent(result.word_error_rate),
                megabytes(result.group_bytes),
                megabytes(result.across_bytes) if system == "bmuf_gtc" else "-",
                f"{result.train_seconds:.0f}",
            )
        )
    print(f"\n{markdown(HEADER, rows)}\n")
    print("DDP knows one group only: all of its bytes cross the network between hosts.")
    print(f"Curves: tensorboard --logdir {LOG_DIR}   (in the environment of the demo)")


if __name__ == "__main__":
    main()
