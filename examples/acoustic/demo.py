"""Train an acoustic model by BMUF in groups and by DDP, and compare their times on slow links.

python -m examples.acoustic.demo            under 5 minutes on 2 cores
python -m examples.acoustic.demo --short    about a minute, to check that it runs
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from examples.acoustic.corpora.synthesis import build_synthetic_corpus
from examples.acoustic.demo_report import comparison, header, plot_errors, row
from examples.acoustic.link_times import HOSTS, RATES, times_over_links
from examples.acoustic.run_system import Result, Settings
from examples.array_cache import default_cache_dir
from examples.run_store import RunStore
from examples.tables import markdown

LOG_DIR = "outputs/acoustic/demo"
PLOT = Path(LOG_DIR) / "demo.png"

# The learning rate was selected on the valid split for DDP (docs/reports/demo.md). Block size and
# warm-up are the numbers that "auto" stands for in a run of 880 steps.
DDP = Settings(
    system="ddp",
    epochs=16,
    decay_epochs=6,
    batch_frames=256,
    learning_rate=0.7,
    log_dir=LOG_DIR,
)
OURS = replace(DDP, system="bmuf_groups", block_size=7, warmup_steps=88)
SLOW_LINK = {"100 Mbit/s": RATES["100 Mbit/s"]}
LABELS = {"bmuf_groups": "bmuf, 2 groups of 2", "ddp": "ddp, 4 ranks"}


def short(settings: Settings) -> Settings:
    """Return the settings with little data and few epochs."""
    return replace(
        settings,
        epochs=2,
        decay_epochs=1,
        corpus_args={"sentences": 150},
        block_size=5,
        warmup_steps=min(settings.warmup_steps, 5),
    )


def synthesise(settings: Settings) -> None:
    """Fill the cache of the corpus, so that its time is in neither run."""
    print("Synthesising speech (cached for later runs) ...", flush=True)
    begun = time.perf_counter()
    build_synthetic_corpus(cache_dir=default_cache_dir(), **settings.corpus_args)
    print(f"... {time.perf_counter() - begun:.0f} s\n", flush=True)


def train(settings: Settings) -> Result:
    """Train in new processes, and return the result."""
    print(f"Training with {LABELS[settings.system]}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        module = "examples.acoustic.run_system"
        store = RunStore(Path(folder), module=module, settings=Settings, result=Result)
        [result] = store.results([settings])
    print(f"... {result.train_seconds:.0f} s on this machine\n", flush=True)
    return result


def main() -> None:
    """Train with both systems, measure steps over links, and print and plot the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--short", action="store_true", help="a minute, to check that it runs")
    runs, rates = [OURS, DDP], RATES
    if parser.parse_args().short:
        runs, rates = [short(settings) for settings in runs], SLOW_LINK
    synthesise(runs[0])
    results = {LABELS[settings.system]: train(settings) for settings in runs}
    print(f"Measuring steps of both on {HOSTS} hosts of 2 ranks ...", flush=True)
    times = times_over_links(runs, rates)
    print("... predicted by the planner: " + times.why if times.why else "... measured")
    rows = [row(label, result, times) for label, result in results.items()]
    print(f"\n{markdown(header(times), rows)}\n")
    print("Bytes are sums over all ranks. DDP has only one group, so all its bytes are counted as")
    print("sent across groups. Times are those of all steps, without validation.\n")
    ours, ddp = results.values()
    print(comparison(ours, ddp, times))
    plot_errors(results, times, PLOT, title="An LSTM acoustic model on 2 hosts of 2 ranks")
    print(f"\nPlot: {PLOT}; curves: tensorboard --logdir {LOG_DIR} (in the demo's environment)")


if __name__ == "__main__":
    main()
