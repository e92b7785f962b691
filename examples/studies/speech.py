"""One run of a study on speech: many workers, played by few ranks, from a pre-trained model.

Started by :class:`examples.run_store.RunStore`; the argument is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.strategies import Strategy

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.decode_words import DecodeWords
from examples.acoustic.fixed_schedule import (
    FixedSchedule,
    FixedScheduleBLSTM,
    FixedScheduleDNN,
    FixedScheduleLSTM,
)
from examples.acoustic.systems import ALL
from examples.quiet import silence_lightning
from examples.run_store import portable
from examples.studies.study import Experiment, Measure
from lightning_hier import TwoStageASGDStrategy

ModelName = Literal["lstm", "dblstm", "dnn"]

TWO_STAGE = "two_stage_asgd"
WORDS, FRAMES = "word errors %", "frame errors %"
DATA = "folder an4_mfcc; default: speech that is synthesised"


@dataclass(frozen=True, kw_only=True)
class SpeechRun:
    """Settings of one run.

    Attributes:
        system: a name of ``examples.acoustic.systems.ALL``, or ``TWO_STAGE``.
        workers: that the data are divided among.
        ranks: processes that play them, equally many each.
        group_size: workers of a group in two tiers.
        block_size: steps between two synchronisations of models.
        density: share of the gradient that GTC sends.
        push_period: N of two-stage ASGD, mini-batches of a group between two pushes.
        model: kind of network.
        model_args: of its constructor.
        seed: of the initial model and of the order of batches.
        pretraining_epochs: of one worker by itself, with which all systems begin.
        epochs: that follow, the same for all systems.
        decay_epochs: so many of them, at the end, each halve the learning rate.
        learning_rate: of SGD with momentum 0.9, of one worker and of the pre-training.
        rate_factor: times that, the rate of this system.
        batch_frames: most frames in a batch of one worker.
        corpus: as ``AcousticDataModule`` names it.
        corpus_args: likewise.
        folder: where pre-trained models are kept.

    """

    system: str
    workers: int = 1
    ranks: int = 1
    group_size: int = 8
    block_size: int = 10
    density: float = 0.05
    push_period: int = 4
    model: ModelName = "lstm"
    model_args: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    pretraining_epochs: int = 4
    epochs: int = 16
    decay_epochs: int = 6
    learning_rate: float = 0.25
    rate_factor: float = 1.0
    batch_frames: int = 128
    corpus: str = "synthetic"
    corpus_args: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    def portable_settings(self) -> dict[str, Any]:
        """As noted: without folders of this machine, and what a system does not look at as it is
        by default, so that tables that share a run find it.
        """
        ignored = {"folder", *_not_looked_at(self.system)}
        defaults = {own.name: own.default for own in fields(self) if own.name in ignored}
        return {**asdict(self), **defaults, "corpus_args": portable(self.corpus_args)}


def _not_looked_at(system: str) -> set[str]:
    """Settings that make no difference to it."""
    if system == TWO_STAGE:
        return {"block_size", "density"}
    own = ALL[system]
    ignored = {"push_period"}
    ignored |= {"group_size"} if own.grouping != "run" else set()
    ignored |= {"block_size"} if own.block_sync is None else set()
    return ignored | ({"density"} if not system.endswith("gtc") else set())


@dataclass(frozen=True, kw_only=True)
class SpeechResult:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``SpeechRun.portable_settings``.
        frame_error_rate: of the test split.
        word_error_rate: likewise, after decoding.
        steps: of every worker, without those of the pre-training.
        train_seconds: of ``fit``, validation included.

    """

    settings: dict[str, Any]
    frame_error_rate: float
    word_error_rate: float
    steps: int
    train_seconds: float


EXPERIMENT = Experiment(
    module="examples.studies.speech",
    settings=SpeechRun,
    result=SpeechResult,
    measures=(
        Measure(WORDS, lambda result: 100.0 * result.word_error_rate),
        Measure(FRAMES, lambda result: 100.0 * result.frame_error_rate),
        Measure("steps of a worker", lambda result: result.steps, 0),
    ),
    told=(
        "model", "model_args", "pretraining_epochs", "epochs", "decay_epochs", "learning_rate",
        "rate_factor", "batch_frames", "block_size", "density",
    ),
)  # fmt: skip
"""How all studies on speech do their runs."""


def with_data(run: SpeechRun, told: argparse.Namespace) -> SpeechRun:
    """A run on the data that the command line names; the quick form takes little of them."""
    run = replace(run, folder=str(told.out))
    if told.quick:
        run = replace(run, pretraining_epochs=1, epochs=1, decay_epochs=0)
        return replace(run, corpus_args={"sentences": 60})
    if told.data:
        return replace(run, corpus="an4", corpus_args={"path": told.data, "delta_orders": 2})
    return run


_MODELS: dict[ModelName, Callable[..., FixedSchedule]] = {
    "lstm": FixedScheduleLSTM,
    "dblstm": FixedScheduleBLSTM,
    "dnn": FixedScheduleDNN,
}


def train(run: SpeechRun) -> SpeechResult:
    """Pre-train, unless that has been done; then train by the system, and score."""
    data = AcousticDataModule(
        corpus=run.corpus,  # type: ignore[arg-type]
        corpus_args=run.corpus_args,
        batch_frames=run.batch_frames,
        seed=run.seed,
    )
    model = _model(run, data)
    model.load_state_dict(_pretrained(run, data))
    trainer = _trainer(run)
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    scores = trainer.test(model, data, verbose=False)[0]
    return SpeechResult(
        settings=run.portable_settings(),
        frame_error_rate=scores["test/frame_error_rate"],
        word_error_rate=scores["test/word_error_rate"],
        steps=trainer.global_step,
        train_seconds=seconds,
    )


def _model(run: SpeechRun, data: AcousticDataModule) -> FixedSchedule:
    pl.seed_everything(run.seed, verbose=False)
    model = _MODELS[run.model](
        feature_dim=data.corpus.feature_dim,
        num_senones=len(data.corpus.senones),
        learning_rate=run.rate_factor * run.learning_rate,
        **run.model_args,
    )
    model.schedule_epochs = (run.epochs, run.decay_epochs)
    return model


def _trainer(run: SpeechRun) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=run.ranks,
        # The pre-training is done by one process, also where torchrun has started more.
        plugins=[LightningEnvironment()] if run.ranks == 1 else None,
        strategy=_strategy(run),
        max_epochs=run.epochs,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
        callbacks=[DecodeWords()],
    )


def _strategy(run: SpeechRun) -> Strategy | str:
    group_size = min(run.group_size, run.workers)
    if run.system == TWO_STAGE:
        return TwoStageASGDStrategy(group_size=group_size, push_period=run.push_period)
    return ALL[run.system].strategy(
        group_size=group_size,
        block_size=run.block_size,
        density=run.density,
        warmup_steps=0,
        virtual_workers=run.workers // run.ranks,
    )


def _pretrained(run: SpeechRun, data: AcousticDataModule) -> dict[str, Any]:
    """The model that all systems begin with, as in two_tiered_bmuf_gtc 3.2."""
    one = replace(
        run,
        system="one_worker",
        workers=1,
        ranks=1,
        epochs=run.pretraining_epochs,
        decay_epochs=0,
        rate_factor=1.0,
    )
    path = Path(run.folder) / "pretrained" / f"{_name(one)}.pt"
    if not path.exists():
        model = _model(one, data)
        if one.epochs:
            _trainer(one).fit(model, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may need it at the same time.
        own = path.with_suffix(f".{os.getpid()}")
        torch.save(model.state_dict(), own)
        own.replace(path)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _name(run: SpeechRun) -> str:
    return hashlib.sha256(json.dumps(run.portable_settings(), sort_keys=True).encode()).hexdigest()[
        :16
    ]


def main() -> None:
    """Do the runs that the first argument says."""
    silence_lightning()
    torch.set_num_threads(1)
    told = json.loads(sys.argv[1])
    for settings in told["runs"]:
        result = train(SpeechRun(**settings))
        if int(os.environ.get("RANK", "0")):
            continue
        with Path(told["results"]).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    main()
