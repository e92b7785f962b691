"""Table 1 of bmuf_adam in small: corrected against averaged moments on real lines of text.

    python -m examples.ocr.study_bmuf_adam --data FOLDER --out outputs/bmuf_adam

``FOLDER`` holds the sets ``oldbooks`` and ``copiste``. All systems see the same lines for the same
number of epochs and have the learning rate of one worker, as in the paper; that of synchronous
Adam is chosen for each number of workers by the characters wrong in the valid split, with the first
seed, from that rate and two and four times it. Every finished run is kept in ``runs.jsonl``, so the
command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch

from examples.ocr.run_store import RunStore
from examples.ocr.run_systems import TITLES, Result, Settings
from examples.tables import markdown, spread

HEADER = (
    "moments",
    "workers",
    "beta1",
    "learning rate",
    "test CER %",
    "test WER %",
    "valid CER %",
    "steps",
    "MB sent",
)
RATE_FACTORS = (1.0, 2.0, 4.0)

_COMMON: dict[str, Any] = {
    "corpus": "manifest",
    "augment": False,
    "model_args": {"cells": 48, "channels": [8, 16, 32]},
}
SETS = {
    "oldbooks": Settings(system="adam", height=24, epochs=8, **_COMMON),
    "copiste": Settings(system="adam", height=32, epochs=12, decay_epochs=3, **_COMMON),
}

Row = list[Settings]


def rows(base: Settings, workers: Sequence[int], seeds: Sequence[int]) -> Iterator[Row]:
    """The runs of each line of the table, but for those of synchronous Adam."""
    yield [replace(base, seed=seed, workers=1) for seed in seeds]
    for number in workers:
        for system in ("average", "corrected"):
            for beta1 in (0.9, 0.5):
                yield [
                    replace(base, system=system, workers=number, beta1=beta1, seed=seed)
                    for seed in seeds
                ]


def candidates(base: Settings, number: int, seed: int) -> list[Settings]:
    """Synchronous Adam at each of its learning rates."""
    own = replace(base, system="sync_adam", workers=number, seed=seed)
    return [replace(own, learning_rate=factor * base.learning_rate) for factor in RATE_FACTORS]


def sync_row(store: RunStore, base: Settings, number: int, seeds: Sequence[int]) -> Row:
    """Synchronous Adam at the rate that suits it best."""
    tried = candidates(base, number, seeds[0])
    results = store.results(tried)
    best = min(zip(tried, results, strict=True), key=lambda pair: pair[1].valid_cer)[0]
    return [replace(best, seed=seed) for seed in seeds]


def train(store: RunStore, base: Settings, workers: Sequence[int], seeds: Sequence[int]) -> None:
    """Run what is missing, many runs to a start of the processes."""
    for number in workers:
        ours = [run for row in rows(base, [number], seeds) for run in row]
        store.results([*candidates(base, number, seeds[0]), *ours])
        store.results(sync_row(store, base, number, seeds))


def line(results: Sequence[Result]) -> tuple[str, ...]:
    """One line of the table: mean and spread over the seeds."""
    settings = Settings(**results[0].settings)
    return (
        TITLES[settings.system],
        str(settings.workers),
        f"{settings.beta1:g}",
        f"{settings.learning_rate:g}",
        spread([100 * result.test_cer for result in results]),
        spread([100 * result.test_wer for result in results]),
        spread([100 * result.valid_cer for result in results]),
        str(results[0].steps),
        f"{results[0].model_bytes / 1e6:.0f}" if settings.ranks > 1 else "-",
    )


def table(store: RunStore, base: Settings, workers: Sequence[int], seeds: Sequence[int]) -> str:
    """The table of one set."""
    lines = []
    own = list(rows(base, workers, seeds))
    lines.append(line(store.results(own[0])))
    for place, number in enumerate(workers):
        lines.append(line(store.results(sync_row(store, base, number, seeds))))
        lines += [line(store.results(row)) for row in own[1 + 4 * place : 5 + 4 * place]]
    return markdown(HEADER, lines)


def page(tables: dict[str, str], bases: dict[str, Settings], seeds: int, command: str) -> str:
    """The report without its conclusions."""
    parts = [
        f"Command: `{command}`",
        f"Versions: Python {platform.python_version()}, torch {torch.__version__}, Lightning "
        f"{lightning.__version__}; {platform.machine()} CPU, one thread a rank, gloo, one host. "
        f"{seeds} seeds: mean ± standard deviation.",
    ]
    for name, text in tables.items():
        base = bases[name]
        parts += [
            f"## {name}",
            f"Lines {base.height} pixels high, {base.epochs} epochs, the learning rate halved "
            f"before each of the last {base.decay_epochs}; {base.batch_lines} lines in a "
            f"mini-batch of one worker; tau = {base.block_size}; synchronous Adam for the first "
            f"{base.warmup_epochs:g} epochs.",
            text,
        ]
    return "\n\n".join(parts) + "\n"


def base_of(name: str, options: argparse.Namespace) -> Settings:
    """What all runs on one set share."""
    arguments: dict[str, Any] = {"path": str(options.data / name)}
    if options.quick:
        arguments["max_lines"] = 200
    base = replace(
        SETS[name],
        corpus_args=arguments,
        block_size=options.block_size,
        log_dir=str(options.out / "logs" / name),
    )
    return replace(base, epochs=1, decay_epochs=0) if options.quick else base


def main() -> None:
    """Run or go on with the study, then write its page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of oldbooks and copiste")
    parser.add_argument("--out", type=Path, default=Path("outputs/bmuf_adam"))
    parser.add_argument("--report", type=Path, help="file of the page; default: --out/report.md")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--workers", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="one epoch of few lines, one seed")
    options = parser.parse_args()
    seeds = range(1 if options.quick else options.seeds)
    workers = options.workers[:1] if options.quick else options.workers
    store = RunStore(options.out)
    bases = {name: base_of(name, options) for name in options.sets}
    for count in range(1, len(seeds) + 1):
        for base in bases.values():
            train(store, base, workers, list(seeds)[:count])
    tables = {name: table(store, base, workers, list(seeds)) for name, base in bases.items()}
    command = f"python -m examples.ocr.study_bmuf_adam --data FOLDER --seeds {len(seeds)}"
    report = options.report or options.out / "report.md"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page(tables, bases, len(seeds), command))
    print("\n".join(tables.values()))


if __name__ == "__main__":
    main()
