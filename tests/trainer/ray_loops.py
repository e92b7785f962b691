"""Training loops of test_ray, for workers of Ray Train and for ordinary ranks."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

import lightning_hier as lh
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import make_trainer, weights

BATCHES = 6
MakeTrainer = Callable[..., pl.Trainer]


class Casualty(Callback):
    """Kills a worker of Ray in the second epoch, after Ray has registered the first checkpoint.

    Ray registers a report when its controller polls the workers the next time.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:
        import ray.train

        if trainer.global_rank == self._rank and trainer.global_step == BATCHES + 2:
            ray.train.get_all_reported_checkpoints(timeout_s=60)
            os.kill(os.getpid(), signal.SIGKILL)


def fit_three_epochs(
    make: MakeTrainer = make_trainer, *callbacks: Callback, ckpt_path: Path | None = None
) -> dict[str, Any]:
    """Train a module that shows every forgotten bit of state (`tests.resume.runs`)."""
    strategy = lh.BMUFGTCStrategy(block_size=4, density=0.2, dense_below=10, warmup_steps=0)
    trainer = make(strategy, max_epochs=3, callbacks=list(callbacks))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + trainer.global_rank)
    model = DropoutNet()
    trainer.fit(model, shuffled(BATCHES), ckpt_path=ckpt_path)
    return {"weights": weights(model), "last_steps": model.seen[-BATCHES:], "made": len(model.seen)}


def ray_trainer(strategy: Any, callbacks: list[Callback] | None = None, **settings: Any) -> Any:
    """A Trainer as in Ray's documentation."""
    from ray.train.lightning import RayLightningEnvironment, RayTrainReportCallback, prepare_trainer

    trainer = pl.Trainer(
        accelerator="cpu",
        devices="auto",
        strategy=strategy,
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback(), *(callbacks or [])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    return prepare_trainer(trainer)


def fault(config: dict[str, Any]) -> None:
    """Train in Ray. A worker is killed, and the run resumes from the newest checkpoint."""
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        fit_three_epochs(ray_trainer, Casualty(rank=1))
        return
    with checkpoint.as_directory() as folder:
        path = Path(folder, "checkpoint.ckpt")
        _write(config, fit_three_epochs(ray_trainer, ckpt_path=path))


def _write(config: dict[str, Any], result: Any) -> None:
    torch.save(result, Path(config["folder"], f"{os.environ['RANK']}.pt"))
