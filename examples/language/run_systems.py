"""Train the tiny language model with one system after the other, and write the results to a file.

``RunStore`` starts this module on every rank, and documents its argument.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger

from examples.language.data_module import Text
from examples.language.model import LanguageModel
from examples.language.runs import SYSTEMS, Point, Result, Settings
from examples.quiet import progress, silence_lightning
from examples.run_store import run_job
from lightning_hier import HierarchicalStrategy

_BITS = "valid/bits_per_byte"


class LearningCurve(Callback):
    """Record the step, the bytes sent by this rank and the bits per byte at each validation."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.bytes: list[tuple[int, int]] = []
        self.bits: list[float] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the values of this validation."""
        self.steps.append(trainer.global_step)
        self.bytes.append(_sent_bytes(trainer.strategy))
        self.bits.append(float(trainer.callback_metrics[_BITS]))

    def points(self) -> tuple[list[Point], int]:
        """Return the curve, and the bytes inside groups at its end. A collective of the world."""
        # After training, so that the time of the run does not include the collective.
        total = torch.tensor(self.bytes, dtype=torch.int64)
        if dist.is_initialized():
            dist.all_reduce(total)
        group, across = total.unbind(1)
        points = [
            Point(step=step, across_bytes=int(sent), bits_per_byte=bits)
            for step, sent, bits in zip(self.steps, across, self.bits, strict=True)
        ]
        return points, int(group[-1])


def run(settings: Settings) -> Result:
    """Train and test with one system. Every rank must call it."""
    pl.seed_everything(settings.seed, verbose=False)
    torch.set_num_threads(1)
    data = Text(
        context=settings.context,
        batch_windows=settings.batch_windows,
        eval_batch_windows=64,
        seed=settings.seed,
    )
    model = LanguageModel(size="tiny", learning_rate=settings.learning_rate, beta1=settings.beta1)
    curve = LearningCurve()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=settings.ranks,
        strategy=SYSTEMS[settings.system].strategy(),
        max_steps=settings.steps,
        gradient_clip_val=1.0,
        check_val_every_n_epoch=None,
        val_check_interval=settings.steps // settings.validations,
        limit_val_batches=settings.eval_share,
        limit_test_batches=settings.eval_share,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=5,
        logger=TensorBoardLogger(settings.log_dir, name=settings.system, version=settings.seed),
        callbacks=[curve, progress()],
    )
    begun = time.perf_counter()
    trainer.fit(model, data)
    seconds = time.perf_counter() - begun
    points, group_bytes = curve.points()
    scores = trainer.test(model, data, verbose=False)[0]
    return Result(
        settings=settings.portable_settings(),
        curve=[asdict(point) for point in points],
        test_bits_per_byte=scores["test/bits_per_byte"],
        group_bytes=group_bytes,
        across_bytes=points[-1].across_bytes,
        train_seconds=seconds,
        steps=trainer.global_step,
    )


def _sent_bytes(strategy: object) -> tuple[int, int]:
    """Return the payload bytes that this rank has sent, inside groups and across groups."""
    assert isinstance(strategy, HierarchicalStrategy)
    group, across = (strategy.traffic.total(tier).payload_bytes for tier in ("group", "across"))
    # The single group of DDP would span several hosts.
    return (0, group) if strategy.block_sync is None else (group, across)


def main() -> None:
    """Do the runs of the command-line argument."""
    silence_lightning()
    run_job(run, Settings)


if __name__ == "__main__":
    main()
