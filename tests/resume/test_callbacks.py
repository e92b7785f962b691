"""Tests EarlyStopping and ModelCheckpoint: equal decisions on all ranks, and usable files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, flat, shuffled, validation
from tests.trainer.fitting import BMUF, make_trainer, this_rank, weights


class Watched(DropoutNet):
    """Logs a value in every validation that differs between ranks. The second mean is the best."""

    def __init__(self, optimizer: str = "SGD") -> None:
        super().__init__(optimizer)
        self.validations = 0
        self.tested: list[Tensor] = []

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.validations += 1
        value = (3.0, 1.0, 2.0, 4.0)[self.validations - 1]
        local_value = value + (1.0 if this_rank() == 1 else -1.0) * (5 - self.validations)
        self.log("value", local_value, sync_dist=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.tested.append(weights(self))


def _fit(strategy: Any, *callbacks: Any, optimizer: str = "SGD", **settings: Any) -> Any:
    torch.manual_seed(this_rank())
    trainer = make_trainer(
        strategy(),
        callbacks=list(callbacks),
        num_sanity_val_steps=0,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        **{"max_epochs": 4, **settings},
    )
    model = Watched(optimizer)
    trainer.fit(model, shuffled(5), validation(2 * int(os.environ["WORLD_SIZE"])))
    return trainer, model


def _stop_early() -> tuple[int, int]:
    stopping = EarlyStopping("value", patience=1, mode="min")
    trainer, model = _fit(BMUF, stopping, val_check_interval=3)
    return trainer.global_step, model.validations


def test_all_ranks_stop_early_at_one_step() -> None:
    """The mean of the third validation is no better than the second. Local values differ from it.

    It comes in the middle of a block and of an epoch.
    """
    assert run_ranks(_stop_early, 2) == [(13, 3)] * 2


def _best(folder: Path) -> dict[str, Any]:
    best = ModelCheckpoint(folder, "{epoch}", monitor="value", save_top_k=2, save_last=True)
    trainer, model = _fit(BMUF, best)
    end = weights(model)
    trainer.test(model, validation(2 * int(os.environ["WORLD_SIZE"])), ckpt_path="best")
    left = sorted(path.name for path in folder.iterdir())
    again = make_trainer(
        BMUF(),
        callbacks=[ModelCheckpoint(folder, save_last=True, save_top_k=0)],
        max_epochs=5,
        limit_val_batches=0,
        enable_checkpointing=True,
    )
    resumed = DropoutNet()
    again.fit(resumed, shuffled(5), ckpt_path="last")
    return {
        "best": Path(best.best_model_path).name,
        "tested": model.tested[0],
        "left": left,
        "end": end,
        "steps": len(resumed.seen),
    }


def test_best_and_last(tmp_path: Path) -> None:
    """The two best of four checkpoints stay with their files.

    The best one is tested, and training resumes from the last one.
    """
    results = run_ranks(_best, 2, tmp_path)
    names = ["epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"]
    saved = torch.load(tmp_path / "epoch=1.ckpt", weights_only=True)["state_dict"]
    for result in results:
        assert result["best"] == "epoch=1.ckpt"
        assert result["left"] == sorted([*names, *(f"{name}.ranks" for name in names)])
        assert torch.equal(result["tested"], flat(saved))
        assert not torch.equal(result["tested"], result["end"])
        assert result["steps"] == 10  # the last checkpoint is that of the third epoch


def _weights_only(folder: Path) -> Tensor:
    saving = ModelCheckpoint(folder, "{epoch}", save_weights_only=True, every_n_epochs=1)
    trainer, model = _fit(BMUF, saving, max_epochs=1)
    trainer.save_checkpoint(folder / "after.ckpt", weights_only=True)
    return weights(model)


def test_checkpoint_of_only_weights_has_no_files_of_ranks(tmp_path: Path) -> None:
    """`newest_checkpoint` does not return it."""
    results = run_ranks(_weights_only, 2, tmp_path)
    assert lh.newest_checkpoint(tmp_path) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after.ckpt", "epoch=0.ckpt"]
    for path in tmp_path.iterdir():
        model = Watched.load_from_checkpoint(path)
        assert torch.equal(weights(model), results[0])
        assert "optimizer_states" not in torch.load(path, weights_only=True)
