"""Train the text line model by one of the demo's systems. ``RunStore`` starts it on every rank."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from examples.ocr.data_module import TextLines
from examples.ocr.model import LineRecogniser, best_paths, references
from examples.quiet import progress, quiet_trainer, silence_lightning
from examples.run_store import run_job
from lightning_hier import BMUFAdam, HierarchicalStrategy

_SHOWN_LINES = 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run.

    Attributes:
        system: BMUF-Adam, or synchronous Adam.
        corpus_args: numbers of lines, see ``render_lines``.
        epochs: number of epochs. The first half of an epoch is a warm-up with synchronous Adam.
        decay_epochs: number of last epochs that each begin by halving the learning rate.
        learning_rate: learning rate of Adam.
        beta1: first moment decay of Adam.
        ranks: number of processes.
    """

    system: Literal["bmuf_adam", "sync_adam"]
    corpus_args: dict[str, int]
    epochs: int
    decay_epochs: int
    learning_rate: float = 2e-3
    beta1: float = 0.5
    ranks: int = 4

    def portable_settings(self) -> dict[str, Any]:
        """Return the settings as a dictionary."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a run.

    Attributes:
        settings: settings of the run.
        test_cer, test_wer: character and word error rate of the test split.
        sent_bytes: payload that all ranks sent.
        train_seconds: duration of ``fit``, including validation.
        lines: references and hypotheses of some lines of the test split.
    """

    settings: dict[str, Any]
    test_cer: float
    test_wer: float
    sent_bytes: int
    train_seconds: float
    lines: list[tuple[str, str]]


def run(settings: Settings) -> Result:
    """Train and evaluate a model. Every rank must call it."""
    pl.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    data = TextLines(corpus_args=settings.corpus_args, batch_lines=4)
    data.setup("fit")
    decays = range(settings.epochs - settings.decay_epochs, settings.epochs)
    model = LineRecogniser(
        learning_rate=settings.learning_rate, beta1=settings.beta1, decay_epochs=tuple(decays)
    )
    steps_per_epoch = len(data.splits["train"]) // (data.batch_lines * settings.ranks)
    strategy = (
        HierarchicalStrategy(group_size="world")
        if settings.system == "sync_adam"
        else HierarchicalStrategy(
            group_size=1,
            block_sync=BMUFAdam(block_size=8, local_beta1="keep"),
            warmup_steps=steps_per_epoch // 2,
        )
    )
    trainer = quiet_trainer(
        devices=settings.ranks,
        strategy=strategy,
        max_epochs=settings.epochs,
        gradient_clip_val=5.0,
        enable_progress_bar=True,
        callbacks=[progress()],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    sent = torch.tensor(
        [sum(strategy.traffic.total(tier).payload_bytes for tier in ("group", "across"))]
    )
    dist.all_reduce(sent)
    scores = trainer.test(model, data, verbose=False)[0]
    return Result(
        settings=asdict(settings),
        test_cer=scores["test/cer"],
        test_wer=scores["test/wer"],
        sent_bytes=int(sent),
        train_seconds=seconds,
        lines=_some_lines(model.eval(), data),
    )


@torch.no_grad()
def _some_lines(model: LineRecogniser, data: TextLines) -> list[tuple[str, str]]:
    """Return references and hypotheses, a line from each of this rank's first test batches."""
    lines = []
    for _, batch in zip(range(_SHOWN_LINES), data.test_dataloader(), strict=False):
        hypotheses = best_paths(*model(batch.images, batch.widths))
        lines.append((references(batch)[0], hypotheses[0]))
    return lines


if __name__ == "__main__":
    silence_lightning()
    run_job(run, Settings)
