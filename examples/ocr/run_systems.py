"""Train text line models with one system after the other and note what came out of each.

Started by ``torchrun.py`` on every rank. The argument is a JSON object: ``runs``, a list of
settings that all take the same number of ranks, and ``results``, a file to which rank 0 appends one
line of JSON for each run. One start for many runs, since 16 processes on few cores take as long to
start as to train.
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
    """One run.

    Attributes:
        system: a key of ``TITLES``.
        corpus: as ``TextLines`` names it.
        corpus_args: likewise.
        height: pixels.
        augment: whether training images are changed a little in each epoch.
        model_args: arguments of ``DarkNetDBLSTM.small``.
        workers: N.
        virtual_workers: that each rank plays. It makes no other run.
        block_size: tau, steps between two synchronisations of models.
        warmup_epochs: part of an epoch that is trained by synchronous Adam first.
        epochs: passes over the data, warm-up included.
        decay_epochs: so many of the last epochs each start with half the learning rate.
        batch_lines: lines in a mini-batch of one worker.
        learning_rate: of Adam.
        beta1: of Adam.
        seed: of the initial model and of the order of batches.
        log_dir: TensorBoard logs go here.
        show: whether test decodes by beam search with a language model too, where flashlight-text
            is installed, and lines are shown with what was read, in TensorBoard and in the result.

    """

    system: System
    corpus: Literal["synthetic", "manifest", "iam", "folder"] = "synthetic"
    corpus_args: dict[str, Any] = field(default_factory=dict)
    height: int = 32
    augment: bool = True
    model_args: dict[str, Any] = field(default_factory=dict)
    workers: int = 4
    virtual_workers: int = 1
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
        """The settings as they are noted: without the folders of one machine, and without what
        makes no other run.
        """
        noted = {**asdict(self), "corpus_args": portable(self.corpus_args), "log_dir": ""}
        if self.system in ("adam", "sync_adam"):
            noted["block_size"] = type(self).block_size
        del noted["virtual_workers"]
        return noted

    @property
    def ranks(self) -> int:
        """Processes that the run takes."""
        return 1 if self.system == "adam" else self.workers // self.virtual_workers


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a run.

    Attributes:
        settings: of the run, see ``Settings.portable_settings``.
        valid_cer, valid_wer: character and word error rate of the valid split, by best path.
        test_cer, test_wer: of the test split.
        test_cer_lm, test_wer_lm: likewise by beam search, where the settings say ``show``.
        valid_losses: CTC loss of the valid split after each epoch, in nats per line.
        model_bytes: payload of all ranks, for gradients, models and moments together.
        train_seconds: of ``fit``, validation included.
        steps: steps of each rank.
        lines: some lines of the test split and what was read, where the settings say ``show``.

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
    """Notes the loss of the valid split after each epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note it."""
        self.losses.append(float(trainer.callback_metrics["valid/loss"]))


class ReadLines(Callback):
    """Keeps the first lines of test with what was read."""

    def __init__(self, *, lines: int) -> None:
        self._wanted = lines
        self.lines: list[tuple[str, str]] = []

    def on_test_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *rest: Any
    ) -> None:
        """Keep lines while more are wanted."""
        both = zip(outputs["references"], outputs["hypotheses"], strict=True)
        self.lines += list(both)[: self._wanted - len(self.lines)]


def strategy(settings: Settings, steps_per_epoch: int) -> HierarchicalStrategy | str:
    """What to pass to the Trainer."""
    if settings.system == "adam":
        return "auto"
    if settings.system == "sync_adam":
        return HierarchicalStrategy(group_size="world", virtual_workers=settings.virtual_workers)
    return HierarchicalStrategy(
        group_size=1,
        virtual_workers=settings.virtual_workers,
        block_sync=BMUFAdam(
            block_size=settings.block_size, moments=settings.system, local_beta1="keep"
        ),
        warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
    )


def run(settings: Settings) -> Result:
    """Train and score. Every rank must call it."""
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
    held = settings.epochs - settings.decay_epochs
    model = DarkNetDBLSTM.small(
        num_classes=len(data.alphabet),
        height=settings.height,
        learning_rate=settings.learning_rate,
        beta1=settings.beta1,
        decay_epochs=tuple(range(held, settings.epochs)),
        unalignable="skip",
        **settings.model_args,
    )
    losses, read = ValidLosses(), ReadLines(lines=8 if settings.show else 0)
    workers = settings.ranks * settings.virtual_workers
    steps_per_epoch = len(data.train) // (settings.batch_lines * workers)
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
        callbacks=[losses, read, progress(), *(_showing() if settings.show else [])],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    sent, valid_losses = _sent(trainer.strategy), list(losses.losses)
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
        model_bytes=sent,
        train_seconds=seconds,
        steps=trainer.global_step,
        lines=read.lines,
    )


def _showing() -> list[Callback]:
    # flashlight-text has no wheels for the newest Python; best paths are read without it.
    beam_search = find_spec("flashlight") is not None
    return [LinePanel(), *([DecodeLines()] if beam_search else [])]


def _sent(strategy: object) -> int:
    """Payload bytes of all ranks together."""
    if not isinstance(strategy, HierarchicalStrategy):
        return 0
    own = sum(strategy.traffic.total(tier).payload_bytes for tier in ("group", "across"))
    total = torch.tensor([own], dtype=torch.int64)
    dist.all_reduce(total)
    return int(total)


def main() -> None:
    """Run what the argument says."""
    silence_lightning()
    run_job(run, Settings)


if __name__ == "__main__":
    main()
