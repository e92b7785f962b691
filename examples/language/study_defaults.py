"""What each strategy learns with its defaults, beside DDP and one worker, at equal steps.

python -m examples.language.study_defaults --steps 300 --seeds 0 1 2
python -m examples.language.study_defaults --steps 1000 --seeds 0 --systems ddp bmuf_adam

Byte-level transformers of 0.2M parameters with AdamW on the source of Python's standard library.
All workers are virtual workers of one process. Runs that are in the file of results are not done
again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from examples.language.data_module import Text
from examples.language.model import LanguageModel
from examples.quiet import silence_lightning
from examples.tables import markdown, spread
from lightning_hier import (
    BMUF,
    GTC,
    BMUFAdam,
    BMUFAdamStrategy,
    BMUFGTCStrategy,
    BMUFStrategy,
    GTCStrategy,
    HierarchicalStrategy,
    ModelAveragingStrategy,
)

HEADER = ("system", "loss in nats a byte", "to DDP's")

# Windows of a batch of one worker, and their length: a step of four workers takes 0.1 s on a core.
_BATCH_WINDOWS = 8
_CONTEXT = 64

_BEFORE: dict[str, Any] = {"warmup_steps": 0}
_HALF = "ddp, first beta 0.5"  # that to which BMUF-Adam lowers it
SYSTEMS: dict[str, Callable[[int], HierarchicalStrategy]] = {
    "ddp": lambda n: HierarchicalStrategy(group_size="world", virtual_workers=n),
    _HALF: lambda n: HierarchicalStrategy(group_size="world", virtual_workers=n),
    "one worker": lambda n: HierarchicalStrategy(group_size="world"),
    "model_averaging": lambda n: ModelAveragingStrategy(virtual_workers=n),
    "bmuf": lambda n: BMUFStrategy(virtual_workers=n),
    "bmuf_adam": lambda n: BMUFAdamStrategy(virtual_workers=n),
    "bmuf_adam, groups of 2": lambda n: HierarchicalStrategy(
        group_size=2, block_sync=BMUFAdam(), virtual_workers=n
    ),
    "gtc": lambda n: GTCStrategy(virtual_workers=n),
    "bmuf_gtc, groups of 2": lambda n: BMUFGTCStrategy(group_size=2, virtual_workers=n),
    "bmuf_adam, as before": lambda n: BMUFAdamStrategy(
        block_size=50, local_beta1="keep", virtual_workers=n, **_BEFORE
    ),
    "bmuf, as before": lambda n: BMUFStrategy(block_size=50, virtual_workers=n, **_BEFORE),
    "gtc, as before": lambda n: GTCStrategy(density=0.01, virtual_workers=n, **_BEFORE),
    "bmuf_gtc, as before": lambda n: HierarchicalStrategy(
        group_size=2,
        gradient_sync=GTC(density=0.01),
        block_sync=BMUF(block_size=50),
        virtual_workers=n,
        **_BEFORE,
    ),
}


@dataclass(frozen=True)
class Run:
    """A run, and with its loss what it came to."""

    system: str
    workers: int
    steps: int
    seed: int
    loss: float | None = None


def train(run: Run) -> Run:
    """Train, and return the run with its loss on valid."""
    pl.seed_everything(run.seed, verbose=False)
    torch.set_num_threads(1)
    strategy = SYSTEMS[run.system](run.workers)
    model = LanguageModel(
        size="tiny",
        vocabulary=257,
        context=_CONTEXT,
        schedule="constant",
        beta1=0.5 if run.system == _HALF else 0.9,
    )
    data = Text(
        context=_CONTEXT, batch_windows=_BATCH_WINDOWS, eval_batch_windows=64, seed=run.seed
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_steps=run.steps,
        gradient_clip_val=1.0,
        limit_val_batches=32,
        check_val_every_n_epoch=None,
        val_check_interval=run.steps,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    return Run(run.system, run.workers, run.steps, run.seed, float(trainer.callback_metrics[_LOSS]))


_LOSS = "valid/loss"


def table(runs: Sequence[Run]) -> str:
    """Mean and standard deviation over the seeds of each system, as Markdown."""
    rows = []
    base = {run.seed: run.loss for run in runs if run.system == "ddp"}
    for system in dict.fromkeys(run.system for run in runs):
        own = [run for run in runs if run.system == system]
        losses = [run.loss for run in own if run.loss is not None]
        ratios = [
            run.loss / (base[run.seed] or 1.0) for run in own if run.loss and run.seed in base
        ]
        rows.append((system, spread(losses, 3), spread(ratios, 3) if ratios else ""))
    return markdown(HEADER, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--results", type=Path, default=Path("outputs/language/defaults.jsonl"))
    options = parser.parse_args(arguments)
    silence_lightning()
    wanted = [
        Run(system, options.workers, options.steps, seed)
        for seed in options.seeds
        for system in options.systems
    ]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    done: dict[Run, Run] = {}
    for line in options.results.read_text().splitlines():
        found = Run(**json.loads(line))
        done[Run(found.system, found.workers, found.steps, found.seed)] = found
    for run in wanted:
        if run not in done:
            done[run] = train(run)
            with options.results.open("a") as results:
                results.write(json.dumps(asdict(done[run])) + "\n")
            print(f"{run.system}, seed {run.seed}: {done[run].loss:.3f}", flush=True)
    print(table([done[run] for run in wanted]))


if __name__ == "__main__":
    main()
