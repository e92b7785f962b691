"""One run of a study on speech: many workers, played by one rank, from a pre-trained model.

Started by :class:`examples.run_store.RunStore`; the argument is one JSON object.
"""

from __future__ import annotations

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

ModelName = Literal["lstm", "dblstm", "dnn"]


@dataclass(frozen=True, kw_only=True)
class SpeechRun:
    """Settings of one run.

    Attributes:
        system: a name of ``examples.acoustic.systems.ALL``.
        workers: that the data are divided among.
        group_size: workers of a group in two tiers.
        block_size: steps between two synchronisations of models.
        density: share of the gradient that GTC sends.
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
    group_size: int = 8
    block_size: int = 10
    density: float = 0.05
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
        """One plays all workers."""
        return 1

    def anywhere(self) -> dict[str, Any]:
        """As noted: without folders of this machine, and what a system does not look at as it is
        by default, so that tables that share a run find it.
        """
        system = ALL[self.system]
        ignored = ["folder"]
        ignored += ["group_size"] if system.grouping != "run" else []
        ignored += ["block_size"] if system.block_sync is None else []
        ignored += ["density"] if not self.system.endswith("gtc") else []
        defaults = {own.name: own.default for own in fields(self) if own.name in ignored}
        path = self.corpus_args.get("path")
        named = {} if path is None else {"path": Path(path).name}
        return {**asdict(self), **defaults, "corpus_args": {**self.corpus_args, **named}}


@dataclass(frozen=True, kw_only=True)
class SpeechResult:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``SpeechRun.anywhere``.
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
        settings=run.anywhere(),
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
    strategy = ALL[run.system].strategy(
        group_size=min(run.group_size, run.workers),
        block_size=run.block_size,
        density=run.density,
        warmup_steps=0,
        virtual_workers=run.workers,
    )
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
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


def _pretrained(run: SpeechRun, data: AcousticDataModule) -> dict[str, Any]:
    """The model that all systems begin with, as in two_tiered_bmuf_gtc 3.2."""
    one = replace(
        run,
        system="one_worker",
        workers=1,
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
    return hashlib.sha256(json.dumps(run.anywhere(), sort_keys=True).encode()).hexdigest()[:16]


def main() -> None:
    """Do the runs that the first argument says."""
    silence_lightning()
    torch.set_num_threads(1)
    told = json.loads(sys.argv[1])
    for settings in told["runs"]:
        result = train(SpeechRun(**settings))
        with Path(told["results"]).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    main()
