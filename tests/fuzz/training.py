"""The runs of one rank in a case, and their records."""

from __future__ import annotations

import logging
import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

import lightning_hier as lh
from tests.fuzz.case import Case
from tests.fuzz.module import FuzzNet
from tests.resume.runs import NoisyData, SaveAt, outcome
from tests.trainer.fitting import make_trainer

ROWS = 2
Record = dict[str, Any]


def train(case: Case, folder: Path) -> dict[str, Record]:
    """Train without validation, and then with validation and one save.

    With a fault, only the second run takes place. The same holds for parameter servers, because
    their runs are not reproducible.
    """
    evaluated = {"evaluated": _fit(case, folder, evaluates=True)}
    if case.fault is not None or case.has_servers:
        return evaluated
    return {"plain": _fit(case, folder, evaluates=False), **evaluated}


def resume(case: Case, folder: Path, killed: bool) -> Record:
    """Resume from the save of :func:`train`, or from the newest checkpoint after a kill."""
    path = lh.newest_checkpoint(folder) if killed else folder / "saved.ckpt"
    return _fit(case, folder, evaluates=True, resumed=True, path=path)


def _fit(
    case: Case,
    folder: Path,
    *,
    evaluates: bool,
    resumed: bool = False,
    path: str | Path | None = None,
) -> Record:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # A resumed run must take its random state from the checkpoint, so its seed is different.
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(case.seed % 1000 + rank + (50 if resumed else 0))
    # The data do not depend on the number of ranks that resume.
    rows = case.batches * ROWS * case.ranks
    data = DataLoader(NoisyData(rows), batch_size=ROWS, shuffle=True, drop_last=True)
    validation = DataLoader(NoisyData(4 * world_size), batch_size=2)
    saves = evaluates and not resumed
    callbacks = [SaveAt(*case.save, folder / "saved.ckpt")] if saves else []
    model = FuzzNet(case)
    trainer = make_trainer(case.make_strategy(), callbacks=callbacks, **_settings(case, evaluates))
    trainer.fit(model, data, validation if evaluates else None, ckpt_path=path)
    return {**outcome(trainer, model), "validated": model.validated, "local": model.local}


def _settings(case: Case, evaluates: bool) -> dict[str, Any]:
    of_device = case.strategy[1].get("ranks_per_device", 1)
    settings: dict[str, Any] = {
        "devices": int(os.environ["LOCAL_WORLD_SIZE"]) // of_device,
        "max_epochs": case.epochs,
        "num_sanity_val_steps": 0,
        "precision": case.precision,
    }
    if evaluates:
        settings["val_check_interval"] = case.validate_every
    if not case.by_hand:
        settings["accumulate_grad_batches"] = case.accumulate
    if case.precision == "16-mixed":
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        settings["plugins"] = [MixedPrecision("16-mixed", "cpu", scaler=scaler)]
        del settings["precision"]
    return settings
