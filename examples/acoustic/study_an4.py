"""Compare the frame and word error rates and the bytes of systems on AN4 at equal epochs.

    python -m examples.acoustic.study_an4 --data FOLDER --out outputs/an4 --report report.md

Each system is trained with every seed and evaluated on the test split, at the learning rate with
the lowest frame error rate on the valid split. ``--search`` searches for these learning rates, with
one seed. ``runs.jsonl`` contains every finished run, so an interrupted study can be continued.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import lightning
import torch

from examples.acoustic.run_system import Result, Settings
from examples.acoustic.systems import STUDIED, SYSTEMS
from examples.run_store import RunStore
from examples.tables import markdown, mean_and_deviation, megabytes

# Results of `--search`, for 16 epochs.
RATES = {
    "one_worker": 0.125,
    "ddp": 0.5,
    "model_averaging": 0.5,
    "bmuf_cbm": 0.125,
    "bmuf_nbm": 0.125,
    "gtc": 0.5,
    "bmuf_gtc": 0.25,
}
FIRST_RATE = 0.5
HEADER = (
    "system",
    "learning rate",
    "frame errors %",
    "word errors %",
    "steps",
    "MB in groups",
    "MB across",
)


class Study:
    """Runs of a study, which are stored in ``runs.jsonl``.

    Args:
        folder: folder of the file.
        base: settings of which all runs are variations.

    """

    def __init__(self, folder: Path, base: Settings) -> None:
        module = "examples.acoustic.run_system"
        self._store = RunStore(folder, module=module, settings=Settings, result=Result)
        self._base = base

    def run(self, system: str, rate: float, *, seed: int = 0, score: str = "test") -> Result:
        """Return the result of a system at a learning rate, from the file or a new run."""
        settings = replace(
            self._base,
            system=system,
            ranks=SYSTEMS[system].ranks(self._base.ranks),
            learning_rate=rate,
            seed=seed,
            score=score,
        )
        print(f"\n{system}, learning rate {rate:g}, seed {seed}", flush=True)
        [result] = self._store.results([settings])
        return result

    def best_rate(self, system: str, start: float = FIRST_RATE) -> float:
        """Return the learning rate with the lowest frame error rate on the valid split.

        The search starts at ``start`` and continues in factors of two while errors decrease. The
        runs have the first seed.
        """

        @cache
        def errors(rate: float) -> float:
            return self.run(system, rate, score="valid").frame_error_rate

        best = start
        for factor in (2.0, 0.5):
            while errors(best * factor) < errors(best):
                best *= factor
        return best


def row(system: str, rate: float, results: Sequence[Result]) -> tuple[str, ...]:
    """Return a row of the table, with means and standard deviations over seeds."""
    single = SYSTEMS[system].gradient_sync is None
    across = SYSTEMS[system].block_sync is not None
    return (
        SYSTEMS[system].title,
        f"{rate:g}",
        mean_and_deviation([100 * result.frame_error_rate for result in results]),
        mean_and_deviation([100 * result.word_error_rate for result in results]),
        str(results[0].steps),
        "-" if single else megabytes(results[0].group_bytes),
        megabytes(results[0].across_bytes) if across else "-",
    )


def report(rows: Sequence[tuple[str, ...]], base: Settings, seeds: int, command: str) -> str:
    """Return the page without its conclusions."""
    settings = ", ".join(
        f"{name} {value}"
        for name, value in asdict(base).items()
        if name in ("ranks", "group_size", "block_size", "density", "warmup_steps", "epochs")
        or name in ("decay_epochs", "batch_frames", "hidden_dim")
    )
    return (
        f"Command: `{command}`\n\n"
        f"Versions: Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}; {platform.machine()} CPU, one thread a rank, gloo, one "
        "host.\n\n"
        f"Settings: {settings}. Learning rate of each system by frame errors on the valid split "
        f"with seed 0, in factors of two around the best. {seeds} seeds: mean ± standard "
        "deviation, test split.\n\n"
        f"{markdown(HEADER, rows)}\n"
    )


def main() -> None:
    """Run or continue the study, and write its page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", required=True, help="folder an4_mfcc")
    parser.add_argument("--out", type=Path, default=Path("outputs/an4"))
    parser.add_argument("--report", type=Path, help="file of the page, by default OUT/report.md")
    parser.add_argument("--systems", nargs="+", default=list(STUDIED), choices=list(SYSTEMS))
    parser.add_argument("--search", action="store_true", help="search for the learning rates")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="one epoch, one seed, one rate")
    options = parser.parse_args()
    base = Settings(
        system="ddp",
        corpus="an4",
        corpus_args={"path": options.data, "delta_orders": 2},
        epochs=1 if options.quick else options.epochs,
        decay_epochs=0 if options.quick else 5,
        batch_frames=256,
        block_size=20,
        # About one epoch. In the papers, all systems start from the same pre-trained model.
        warmup_steps=60,
        log_dir=str(options.out / "logs"),
    )
    seeds = 1 if options.quick else options.seeds
    study = Study(options.out, base)
    rows = []
    for system in options.systems:
        rate = RATES.get(system, FIRST_RATE)
        if options.search and not options.quick:
            rate = study.best_rate(system)
        results = [study.run(system, rate, seed=seed) for seed in range(seeds)]
        rows.append(row(system, rate, results))
        print(f"\n{markdown(HEADER, rows)}\n", flush=True)
    flags = "" if options.systems == list(STUDIED) else f" --systems {' '.join(options.systems)}"
    flags += " --search" if options.search else ""
    command = f"python -m examples.acoustic.study_an4 --data FOLDER/an4_mfcc{flags}"
    page = options.report or options.out / "report.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(report(rows, base, seeds, command))


if __name__ == "__main__":
    main()
