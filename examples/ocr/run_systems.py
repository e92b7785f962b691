"""Train text line models with several systems, and store the results.

``RunStore`` starts this module on every rank, and documents its argument.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from examples.ocr.data_module import TextLines
from examples.ocr.decode_lines import DecodeLines
from examples.ocr.model import DarkNetDBLSTM
from examples.ocr.panel import LinePanel
from examples.quiet import progress, silence_lightning
from examples.run_store import portable, run_job
from lightning_hier import BMUFAdam, HierarchicalStrategy

System = Literal["adam", "sync_adam", "corrected", "average"]

TITLES: dict[str, str] = {
    "adam": "Adam, one worker",
    "sync_adam": "synchronous Adam",
    "average": "BMUF-Adam, averaged moments",
    "corrected": "BMUF-Adam, corrected moments",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        system: a key of ``TITLES``.
        corpus: name of the corpus, see ``TextLines``.
        corpus_args: arguments of the corpus, see ``TextLines``.
        height: height of the images in pixels.
        augment: whether training images are distorted.
        model_args: arguments of ``DarkNetDBLSTM.small``.
        workers: N, number of workers.
        block_size: tau, number of steps between two synchronisations of models.
        warmup_epochs: duration of the warm-up with synchronous Adam, in epochs.
        epochs: number of epochs, including the warm-up.
        decay_epochs: number of last epochs that each begin by halving the learning rate.
        batch_lines: number of lines in a mini-batch of one worker.
        learning_rate: learning rate of Adam.
        beta1: first moment decay of Adam.
        seed: seed of the initial model and of the order of batches.
        log_dir: directory of the TensorBoard logs.
        show: whether to log some lines with their hypotheses to TensorBoard and store them in the
            result. If flashlight-text is installed, test then also decodes by beam search with a
            language model.

    """

    system: System
    corpus: Literal["synthetic", "manifest", "iam", "folder"] = "synthetic"
    corpus_args: dict[str, Any] = field(default_factory=dict)
    height: int = 32
    augment: bool = True
    model_args: dict[str, Any] = field(default_factory=dict)
    workers: int = 4
    block_size: int = 8
    warmup_epochs: float = 0.5
    epochs: int = 6
    decay_epochs: int = 2
    batch_lines: int = 4
    learning_rate: float = 2e-3
    beta1: float = 0.9
    seed: int = 0
    log_dir: str = "outputs/ocr"
    show: bool = False

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings that identify the run.

        They contain no directories of this machine, and no settings without effect on the results.
        """
        settings = {**asdict(self), "corpus_args": portable(self.corpus_args), "log_dir": ""}
        if self.system in ("adam", "sync_adam"):
            settings["block_size"] = type(self).block_size
        return settings

    @property
    def ranks(self) -> int:
        """Number of processes of the run."""
        return 1 if self.system == "adam" else self.workers


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run, see ``Settings.portable_settings``.
        valid_cer, valid_wer: character and word error rate of the valid split, by best path.
        test_cer, test_wer: character and word error rate of the test split, by best path.
        test_cer_lm, test_wer_lm: the same by beam search, or NaN without ``Settings.show``.
        valid_losses: CTC loss of the valid split after each epoch, in nats per line.
        model_bytes: payload of all ranks for gradients, models and moments.
        train_seconds: duration of ``fit``, including validation.
        steps: number of steps of each rank.
        lines: references and hypotheses of some lines of the test split, with ``Settings.show``.

    """

    settings: dict[str, Any]
    valid_cer: float
    valid_wer: float
    test_cer: float
    test_wer: float
    test_cer_lm: float
    test_wer_lm: float
    valid_losses: list[float]
    model_bytes: int
    train_seconds: float
    steps: int
    lines: list[tuple[str, str]]


class ValidLosses(Callback):
    """Collects the loss of the valid split after each epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Append the loss to ``losses``."""
        self.losses.append(float(trainer.callback_metrics["valid/loss"]))


class LineCollector(Callback):
    """Collects the references and hypotheses of the first lines of test."""

    def __init__(self, *, maximum: int) -> None:
        self._maximum = maximum
        self.lines: list[tuple[str, str]] = []

    def on_test_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *rest: Any
    ) -> None:
        """Append lines of the batch to ``lines``, up to the maximum number."""
        pairs = zip(outputs["references"], outputs["hypotheses"], strict=True)
        self.lines += list(pairs)[: self._maximum - len(self.lines)]


def strategy(settings: Settings, steps_per_epoch: int) -> HierarchicalStrategy | str:
    """Return the strategy for the Trainer."""
    if settings.system == "adam":
        return "auto"
    if settings.system == "sync_adam":
        return HierarchicalStrategy(group_size="world")
    return HierarchicalStrategy(
        group_size=1,
        block_sync=BMUFAdam(
            block_size=settings.block_size, moments=settings.system, local_beta1="keep"
        ),
        warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
    )


def run(settings: Settings) -> Result:
    """Train and evaluate a model. Every rank must call it."""
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(1)
    data = TextLines(
        corpus=settings.corpus,
        corpus_args=settings.corpus_args,
        height=settings.height,
        batch_lines=settings.batch_lines,
        augment=settings.augment,
        seed=settings.seed,
    )
    first_decay = settings.epochs - settings.decay_epochs
    model = DarkNetDBLSTM.small(
        num_classes=len(data.alphabet),
        height=settings.height,
        learning_rate=settings.learning_rate,
        beta1=settings.beta1,
        decay_epochs=tuple(range(first_decay, settings.epochs)),
        unalignable="skip",
        **settings.model_args,
    )
    losses, test_lines = ValidLosses(), LineCollector(maximum=8 if settings.show else 0)
    steps_per_epoch = len(data.train) // (settings.batch_lines * settings.ranks)
    version = f"{settings.workers}_workers_beta_{settings.beta1:g}_seed_{settings.seed}"
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=settings.ranks,
        strategy=strategy(settings, steps_per_epoch),
        max_epochs=settings.epochs,
        gradient_clip_val=5.0,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=5,
        logger=TensorBoardLogger(settings.log_dir, name=settings.system, version=version),
        callbacks=[losses, test_lines, progress(), *(_panel() if settings.show else [])],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    model_bytes, valid_losses = _total_payload(trainer.strategy), list(losses.losses)
    scores = {
        **trainer.validate(model, data, verbose=False)[0],
        **trainer.test(model, data, verbose=False)[0],
    }
    return Result(
        settings=settings.portable_settings(),
        valid_cer=scores["valid/cer"],
        valid_wer=scores["valid/wer"],
        test_cer=scores["test/cer"],
        test_wer=scores["test/wer"],
        test_cer_lm=scores.get("test/cer_lm", math.nan),
        test_wer_lm=scores.get("test/wer_lm", math.nan),
        valid_losses=valid_losses,
        model_bytes=model_bytes,
        train_seconds=seconds,
        steps=trainer.global_step,
        lines=test_lines.lines,
    )


def _panel() -> list[Callback]:
    # flashlight-text has no wheels for the newest Python. Without it, only best path is used.
    beam_search = find_spec("flashlight") is not None
    return [LinePanel(), *([DecodeLines()] if beam_search else [])]


def _total_payload(strategy: object) -> int:
    """Return the payload bytes of all ranks. Every rank must call it."""
    if not isinstance(strategy, HierarchicalStrategy):
        return 0
    payload = sum(strategy.traffic.total(tier).payload_bytes for tier in ("group", "across"))
    total = torch.tensor([payload], dtype=torch.int64)
    dist.all_reduce(total)
    return int(total)


def main() -> None:
    """Run the settings of the command-line argument."""
    silence_lightning()
    run_job(run, Settings)


if __name__ == "__main__":
    main()
