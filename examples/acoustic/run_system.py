"""Train one system on one corpus and report what came out, as JSON on rank 0.

Started by ``launch.py`` on every rank; arguments and result are one JSON object each.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn

from examples.acoustic.data_module import AcousticDataModule
from examples.acoustic.decode_words import DecodeWords
from examples.acoustic.fixed_schedule import FixedScheduleLSTM
from examples.acoustic.systems import ALL
from examples.quiet import progress, silence_lightning
from lightning_hier import HierarchicalStrategy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run.

    Attributes:
        system: a name of ``ALL``.
        corpus: as ``AcousticDataModule`` names it.
        corpus_args: likewise.
        ranks: processes, unless the system takes one only.
        group_size: ranks of a group in two tiers.
        block_size: steps between two synchronisations of models.
        density: share of the gradient that GTC sends.
        warmup_steps: first steps, with exact averages over all ranks.
        seed: of the initial model and of the order of batches.
        epochs: the same for all systems.
        decay_epochs: so many of them, at the end, each halve the learning rate. (Min-rate newbob
            decides by the loss when to halve and when to stop; a comparison at equal epochs
            must not.)
        batch_frames: most frames in a batch of one rank.
        learning_rate: of SGD with momentum 0.9.
        hidden_dim: cells of each of the two LSTM layers.
        log_dir: TensorBoard logs go here.
        score: split of which errors are reported, ``"valid"`` or ``"test"``.
        result: file of the result.

    """

    system: str
    corpus: str = "synthetic"
    corpus_args: dict[str, Any] = field(default_factory=dict)

    ranks: int = 4
    group_size: int = 2
    block_size: int = 10
    density: float = 0.05
    warmup_steps: int = 0
    seed: int = 0
    epochs: int = 10
    decay_epochs: int = 5
    batch_frames: int = 512
    learning_rate: float = 0.5
    hidden_dim: int = 128
    log_dir: str = "outputs/acoustic"
    score: str = "test"
    result: str = "result.json"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run.
        frame_error_rate: share of wrong frames.
        word_error_rate: after decoding.
        group_bytes: payload of all ranks inside groups.
        across_bytes: payload of all ranks between groups.
        train_seconds: of ``fit``, validation included.
        steps: steps of each rank.
        curve: of the valid split at the end of each epoch, the steps before it and the frame
            error rate.

    """

    settings: dict[str, Any]
    frame_error_rate: float
    word_error_rate: float
    group_bytes: int
    across_bytes: int
    train_seconds: float
    steps: int
    curve: list[tuple[int, float]] = field(default_factory=list)


class LearningCurve(pl.Callback):
    """Keeps the frame error rate of every validation within training, with the steps before it."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:  # not the score of the trained model
            errors = float(trainer.callback_metrics["valid/frame_error_rate"])
            self.points.append((trainer.global_step, errors))


def data_and_model(settings: Settings) -> tuple[AcousticDataModule, FixedScheduleLSTM]:
    """What is trained on, and the untrained model, both by the seed of the settings."""
    pl.seed_everything(settings.seed, verbose=False)
    data = AcousticDataModule(
        corpus=settings.corpus,  # type: ignore[arg-type]
        corpus_args=settings.corpus_args,
        batch_frames=settings.batch_frames,
        seed=settings.seed,
    )
    model = FixedScheduleLSTM(
        feature_dim=data.corpus.feature_dim,
        num_senones=len(data.corpus.senones),
        hidden_dim=settings.hidden_dim,
        num_layers=2,
        learning_rate=settings.learning_rate,
    )
    model.schedule_epochs = (settings.epochs, settings.decay_epochs)
    return data, model


def trainer_for(settings: Settings, **further: Any) -> pl.Trainer:
    """A Trainer on the CPU with the strategy of the settings; ``further`` are its arguments."""
    system = ALL[settings.system]
    strategy = system.strategy(
        group_size=settings.group_size,
        block_size=settings.block_size,
        density=settings.density,
        warmup_steps=settings.warmup_steps,
    )
    return pl.Trainer(
        accelerator="cpu",
        strategy=strategy,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **further,
    )


def run(settings: Settings) -> Result:
    """Train and score. Every rank must call it."""
    torch.set_num_threads(1)
    data, model = data_and_model(settings)
    curve = LearningCurve()
    trainer = trainer_for(
        settings,
        devices=ALL[settings.system].ranks(settings.ranks),
        max_epochs=settings.epochs,
        log_every_n_steps=5,
        logger=TensorBoardLogger(settings.log_dir, name=settings.system, version=settings.seed),
        callbacks=[DecodeWords(), curve, progress()],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    group_bytes, across_bytes = _sent(trainer.strategy)
    scores = (trainer.test if settings.score == "test" else trainer.validate)(
        model, data, verbose=False
    )[0]
    return Result(
        settings=asdict(settings),
        frame_error_rate=scores[f"{settings.score}/frame_error_rate"],
        # Decoding takes place in test alone.
        word_error_rate=scores.get(f"{settings.score}/word_error_rate", math.nan),
        group_bytes=group_bytes,
        across_bytes=across_bytes,
        train_seconds=seconds,
        steps=trainer.global_step,
        curve=curve.points,
    )


def _sent(strategy: object) -> tuple[int, int]:
    """Payload bytes of all ranks together, inside groups and across them."""
    if not isinstance(strategy, HierarchicalStrategy):
        return 0, 0
    own = [strategy.traffic.total(tier).payload_bytes for tier in ("group", "across")]
    total = torch.tensor(own, dtype=torch.int64)
    dist.all_reduce(total)
    group, across = total.tolist()
    return group, across


def main() -> None:
    """Run what the first argument says."""
    silence_lightning()
    settings = Settings(**json.loads(sys.argv[1]))
    result = run(settings)
    if not dist.is_initialized() or dist.get_rank() == 0:
        Path(settings.result).write_text(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
