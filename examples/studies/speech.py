"""Runs of the studies on speech: one rank for each worker, from a pre-trained model.

:class:`examples.run_store.RunStore` starts this module. The argument is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
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
from examples.quiet import quiet_trainer, silence_lightning
from examples.run_store import portable, run_job
from examples.studies.study import Experiment, Measure
from lightning_hier import TwoStageASGDStrategy

ModelName = Literal["lstm", "dblstm", "dnn"]

TWO_STAGE = "two_stage_asgd"
WORDS, FRAMES = "word errors %", "frame errors %"
DATA = "folder an4_mfcc (default: synthesised speech)"


@dataclass(frozen=True, kw_only=True)
class SpeechRun:
    """Settings of one run.

    Attributes:
        system: a name of ``examples.acoustic.systems.ALL``, or ``TWO_STAGE``.
        workers: number of workers, among which the data are divided.
        group_size: number of workers of a group in two tiers.
        block_size: number of steps between two synchronisations of models.
        density: fraction of the gradient elements that GTC sends.
        push_period: N of two-stage ASGD, number of mini-batches of a group between two pushes.
        model: kind of network.
        model_args: arguments of its constructor.
        seed: seed of the initial model and of the order of batches.
        pretraining_epochs: number of epochs of the pre-training by a single worker.
        epochs: number of epochs after the pre-training, the same for all systems.
        decay_epochs: number of epochs at the end, each of which halves the learning rate.
        learning_rate: learning rate of SGD with momentum 0.9, for one worker and the pre-training.
        rate_factor: learning rate of this system relative to ``learning_rate``.
        batch_frames: maximum number of frames in a batch of one worker.
        corpus: argument of ``AcousticDataModule``.
        corpus_args: argument of ``AcousticDataModule``.
        folder: folder of the pre-trained models.

    """

    system: str
    workers: int = 1
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

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self.workers

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings without folders of this machine.

        Settings that the system does not use have their defaults, so that equal runs of several
        tables are done once.
        """
        unused = {"folder", *_unused_settings(self.system)}
        defaults = {item.name: item.default for item in fields(self) if item.name in unused}
        return {**asdict(self), **defaults, "corpus_args": portable(self.corpus_args)}


def _unused_settings(name: str) -> set[str]:
    """Return the settings that do not change the runs of a system."""
    if name == TWO_STAGE:
        return {"block_size", "density"}
    system = ALL[name]
    unused = {"push_period"}
    unused |= {"group_size"} if system.grouping != "run" else set()
    unused |= {"block_size"} if system.block_sync is None else set()
    return unused | ({"density"} if not name.endswith("gtc") else set())


@dataclass(frozen=True, kw_only=True)
class SpeechResult:
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``SpeechRun.portable_settings``.
        frame_error_rate: frame error rate of the test split.
        word_error_rate: word error rate of the test split, after decoding.
        steps: number of steps of each worker after the pre-training.
        train_seconds: duration of ``fit``.

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
    reported=(
        "model", "model_args", "pretraining_epochs", "epochs", "decay_epochs", "learning_rate",
        "rate_factor", "batch_frames", "block_size", "density",
    ),
)  # fmt: skip
"""Kind of the runs of all studies on speech."""


def with_data(run: SpeechRun, options: argparse.Namespace) -> SpeechRun:
    """Return a run with the data of the command line, or with a few sentences for ``--quick``."""
    run = replace(run, folder=str(options.out))
    if options.quick:
        run = replace(run, pretraining_epochs=1, epochs=1, decay_epochs=0)
        return replace(run, corpus_args={"sentences": 60})
    if options.data:
        return replace(run, corpus="an4", corpus_args={"path": options.data, "delta_orders": 2})
    return run


_MODELS: dict[ModelName, Callable[..., FixedSchedule]] = {
    "lstm": FixedScheduleLSTM,
    "dblstm": FixedScheduleBLSTM,
    "dnn": FixedScheduleDNN,
}


def train(run: SpeechRun) -> SpeechResult:
    """Train from the pre-trained model, which is trained first if necessary, and test.

    Every rank must call it.
    """
    torch.set_num_threads(1)
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
    return quiet_trainer(
        devices=run.ranks,
        # The pre-training has one process, also if there are several ranks.
        plugins=[LightningEnvironment()] if run.ranks == 1 else None,
        strategy=_strategy(run),
        max_epochs=run.epochs,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        callbacks=[DecodeWords()],
    )


def _strategy(run: SpeechRun) -> Strategy | str:
    group_size = min(run.group_size, run.workers)
    if run.system == TWO_STAGE:
        return TwoStageASGDStrategy(group_size=group_size, push_period=run.push_period)
    return ALL[run.system].strategy(
        ranks=run.ranks,
        group_size=group_size,
        block_size=run.block_size,
        density=run.density,
        warmup_steps=0,
    )


def _pretrained(run: SpeechRun, data: AcousticDataModule) -> dict[str, Any]:
    """Return the model from which all systems start, as in two_tiered_bmuf_gtc 3.2."""
    pretraining = replace(
        run,
        system="one_worker",
        workers=1,
        epochs=run.pretraining_epochs,
        decay_epochs=0,
        rate_factor=1.0,
    )
    path = Path(run.folder) / "pretrained" / f"{_name(pretraining)}.pt"
    if not path.exists() and int(os.environ.get("RANK", "0")) == 0:
        model = _model(pretraining, data)
        if pretraining.epochs:
            _trainer(pretraining).fit(model, data)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several jobs may write the file at the same time.
        temporary = path.with_suffix(f".{os.getpid()}")
        torch.save(model.state_dict(), temporary)
        temporary.replace(path)
    # Not a barrier: with a process group, the Trainer of one rank would wait for the others. If the
    # first rank fails, all ranks are stopped.
    while not path.exists():
        time.sleep(0.1)
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _name(run: SpeechRun) -> str:
    settings = json.dumps(run.portable_settings(), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


if __name__ == "__main__":
    silence_lightning()
    run_job(train, SpeechRun)
