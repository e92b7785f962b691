"""Frame errors of two-stage ASGD without each of its techniques, on synthesised speech.

Four ranks on one host form two groups of two. They train a small version of the DNN of
``examples/acoustic``. All systems train for the same number of epochs. The learning rate of each
system is the one with the fewest frame errors on the validation split with seed 0. The system is
then trained with all seeds, and evaluated on the test split.

    python -m benchmarks.two_stage_quality
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch.optim.lr_scheduler import LambdaLR

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.models import DNNAcousticModel
from examples.quiet import quiet_trainer, silence_lightning
from examples.ranks import run_module
from examples.tables import markdown, mean_and_deviation
from lightning_hier import TwoStageASGDStrategy

_RANKS = 4
_ONE = "one rank"
_SWITCHES: dict[str, dict[str, bool]] = {
    "two-stage ASGD": {},
    "without order-locking": {"order_locking": False},
    "without double buffering": {"double_buffering": False},
    "without the hierarchical rate": {"hierarchical_lr": False},
}
_SYSTEMS = [_ONE, "DDP", *_SWITCHES]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of one launch.

    Attributes:
        systems: names of the systems to train.
        seeds: number of seeds of the model and of the order of batches, which start at 0.
        rates: learning rates to choose from.
        epochs: number of epochs of a run.
        decay_epochs: number of epochs at the end, each of which halves the learning rate.
        batch_frames: largest number of frames in a mini-batch of a rank.
        push_period: push period N.
        warmup_steps: synchronous warm-up steps of two-stage ASGD.
        out: file to which rank 0 appends a row of the table for each system.

    """

    systems: list[str]
    seeds: int
    rates: list[float]
    epochs: int
    decay_epochs: int
    batch_frames: int
    push_period: int
    warmup_steps: int
    out: str


class FixedScheduleDNN(DNNAcousticModel):
    """The DNN with a schedule that does not depend on the loss, so that all train equally long."""

    schedule: tuple[int, int] = (1, 0)

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum. The learning rate is halved in each of the last epochs."""
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.learning_rate, momentum=self.momentum
        )
        epochs, decay_epochs = self.schedule
        constant_epochs = epochs - decay_epochs
        scheduler = LambdaLR(optimizer, lambda epoch: 0.5 ** max(0, epoch + 1 - constant_epochs))
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return no callbacks, so that there is no early stopping."""
        return []


def strategy_of(system: str, job: Job) -> Strategy:
    """Return the strategy of the Trainer."""
    if system == _ONE:
        return SingleDeviceStrategy(device="cpu")
    if system == "DDP":
        return DDPStrategy(process_group_backend="gloo")
    return TwoStageASGDStrategy(
        group_size=2,
        push_period=job.push_period,
        warmup_steps=job.warmup_steps,
        **_SWITCHES[system],  # type: ignore[arg-type]
    )


def _ranks(system: str) -> int:
    return 1 if system == _ONE else _RANKS


def errors(system: str, rate: float, seed: int, job: Job) -> dict[str, float]:
    """Train, and return the frame errors of both splits in percent. All ranks must call it."""
    pl.seed_everything(seed, verbose=False)
    data = AcousticDataModule(
        corpus="synthetic",
        corpus_args={"sentences": 600},
        batch_frames=job.batch_frames,
        seed=seed,
    )
    model = FixedScheduleDNN(
        feature_dim=data.corpus.feature_dim,
        num_senones=len(data.corpus.senones),
        hidden_dim=128,
        num_layers=5,
        context=1,
        learning_rate=rate,
    )
    model.schedule = (job.epochs, job.decay_epochs)
    trainer = quiet_trainer(
        devices=_ranks(system),
        strategy=strategy_of(system, job),
        max_epochs=job.epochs,
        gradient_clip_val=1.0,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    test = trainer.test(model, data, verbose=False)[0]["test/frame_error_rate"]
    valid = trainer.validate(model, data, verbose=False)[0]["valid/frame_error_rate"]
    return {"valid": 100 * valid, "test": 100 * test}


def study(job: Job) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each system. All ranks must iterate over it."""
    for system in job.systems:
        tried = {rate: errors(system, rate, 0, job) for rate in job.rates}
        best = min(tried, key=lambda rate: tried[rate]["valid"])
        runs = [tried[best], *(errors(system, best, seed, job) for seed in range(1, job.seeds))]
        cells = [[run[split] for run in runs] for split in ("test", "valid")]
        others = ", ".join(f"{rate:g}: {run['valid']:.1f}" for rate, run in tried.items())
        yield (system, f"{best:g}", *(mean_and_deviation(values) for values in cells), others)


def main() -> None:
    """Launch the ranks and print the table. With JSON as argument, run as a rank."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        _run_rank(Job(**json.loads(sys.argv[1])))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--out", type=Path, help="file of the rows; existing rows are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out: Path = options.out or Path(folder) / "rows.jsonl"
        done = [row[0] for row in _rows(out)]
        for ranks in (1, _RANKS):
            missing = [name for name in _SYSTEMS if _ranks(name) == ranks and name not in done]
            job = Job(
                systems=missing,
                seeds=options.seeds,
                rates=options.rates,
                epochs=options.epochs,
                decay_epochs=options.epochs // 3,
                batch_frames=256,
                push_period=4,
                warmup_steps=40,
                out=str(out.resolve()),
            )
            if missing:
                run_module("benchmarks.two_stage_quality", json.dumps(asdict(job)), ranks=ranks)
        header = ("system", "learning rate", "test %", "valid %", "valid % by rate, seed 0")
        print(markdown(header, _rows(out)))


def _rows(out: Path) -> list[list[str]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _run_rank(job: Job) -> None:
    silence_lightning()
    torch.set_num_threads(1)
    for row in study(job):
        if int(os.environ.get("RANK", "0")) == 0:
            with Path(job.out).open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
