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
from lightning_hier.strategies.registry import PRESETS
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import Net, loader, make_trainer, weights

BATCHES = 6
MakeTrainer = Callable[..., pl.Trainer]

# Epochs have 6 steps and blocks 5, so local models differ from the global model at an epoch's end.
PRESET_SETTINGS: dict[str, dict[str, Any]] = {
    "gtc": {"density": 0.3, "dense_below": 0},
    "model_averaging": {"block_size": 5},
    "bmuf": {"block_size": 5},
    "bmuf_adam": {"block_size": 5},
    "bmuf_gtc": {"block_size": 5, "density": 0.3, "dense_below": 0},
    "psp": {"linear_scaling": False},
    "two_stage_asgd": {"push_period": 2},
}


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


def fit_by_each_preset(make: MakeTrainer = make_trainer) -> dict[str, Any]:
    """Train with each preset in turn. Return the last weights and the placement of the rank."""
    results = {}
    for name, preset in PRESETS.items():
        strategy = preset(**PRESET_SETTINGS[name])
        model = Net(optimizer="Adam", lr=0.01) if name == "bmuf_adam" else Net()
        make(strategy, max_epochs=2).fit(model, loader(BATCHES))
        placed = {
            "sizes": strategy.layout.sizes,
            "device": str(strategy.root_device),
            "sampler": strategy.distributed_sampler_kwargs,
            "on_one_host": strategy.num_processes == strategy.world_size,
        }
        results[name] = {"weights": weights(model), "placed": placed}
    return results


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


def presets(config: dict[str, Any]) -> None:
    """Train with every preset, in Ray."""
    _write(config, fit_by_each_preset(ray_trainer))


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


def mistakes(config: dict[str, Any]) -> None:
    """Collect errors of mistakes, and train, in Ray on hosts with two workers and with one."""
    from ray.train.lightning import prepare_trainer

    def without_environment() -> None:
        pl.Trainer(accelerator="cpu", strategy="bmuf", logger=False).fit(Net(), loader(2))

    def prepared_without_environment() -> None:
        prepare_trainer(pl.Trainer(accelerator="cpu", strategy="bmuf", logger=False))

    def groups_of_uneven_hosts() -> None:
        ray_trainer(
            lh.BMUFGTCStrategy(warmup_steps=0, density=0.01, block_size=50), max_epochs=1
        ).fit(Net(), loader(2))

    world = os.environ["WORLD_SIZE"]
    errors = {}
    for mistake in (without_environment, prepared_without_environment, groups_of_uneven_hosts):
        os.environ["WORLD_SIZE"] = world  # Lightning's own environment removes it at the end
        try:
            mistake()
            errors[mistake.__name__] = "nothing was raised"
        except (RuntimeError, ValueError) as error:
            errors[mistake.__name__] = str(error)
    model = Net()
    ray_trainer("bmuf", max_epochs=1).fit(model, loader(BATCHES))
    _write(config, {"errors": errors, "weights": weights(model)})


def _write(config: dict[str, Any], result: Any) -> None:
    torch.save(result, Path(config["folder"], f"{os.environ['RANK']}.pt"))
