"""Ranks that meet in the middle of an epoch hold up nobody who is still on the way there."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer
from tests.waiting import wait_until

LIMIT = timedelta(seconds=20)


def _fit(model: Net, strategy: Any, folder: Path, batches: int) -> tuple[int, dict[str, float]]:
    saving = ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)
    trainer = make_trainer(strategy, enable_checkpointing=True, callbacks=[saving])
    trainer.fit(model, loader(batches))
    return trainer.global_step, strategy.metrics()


class _FewerPushes(Net):
    """Rank 0 leaves two gradients out, so its node has made two pushes fewer."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if batch_idx == 7:
            self.log("loss", loss, on_step=True, sync_dist=True)
        left_out = os.environ["RANK"] == "0" and batch_idx in (1, 2)
        return loss * torch.nan if left_out else loss


def _locked(folder: Path) -> tuple[int, dict[str, float]]:
    strategy = lh.TwoStageASGDStrategy(
        group_size=1, push_period=1, double_buffering=False, timeout=LIMIT
    )
    return _fit(_FewerPushes(), strategy, folder, 12)


def test_two_stage_with_locked_order(tmp_path: Path) -> None:
    """Rank 1 waits for a turn of rank 0, which waits for rank 1 to save."""
    fits = run_ranks(_locked, 2, tmp_path)
    assert [steps for steps, _ in fits] == [12, 12]
    gradients = [metrics["hier/two_stage/node/gradients"] for _, metrics in fits]
    assert gradients == [10.0, 12.0]
    assert fits[0][1]["hier/two_stage/master/pushes"] == 22.0
    assert len(list(tmp_path.glob("*.ckpt"))) == 2


class _Behind(Net):
    """Rank 2 makes its first step when the others wait for it in a meeting."""

    def __init__(self, come: Path) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.come = come

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        if os.environ["RANK"] == "2" and batch_idx == 0:
            wait_until(lambda: len(list(self.come.iterdir())) == 2, "the others at the meeting")
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        if batch_idx == 4:
            (self.come / os.environ["RANK"]).touch()


def _by_hand(folder: Path, come: Path) -> tuple[int, dict[str, float]]:
    return _fit(_Behind(come), lh.PSPStrategy(min_pushes=2, timeout=LIMIT), folder, 12)


def test_psp_by_hand_with_one_rank_behind(tmp_path: Path) -> None:
    """A rank that is late can't leave batches out: it makes its steps while the others wait."""
    come = tmp_path / "come"
    come.mkdir()
    fits = run_ranks(_by_hand, 3, tmp_path / "saved", come)
    assert [steps for steps, _ in fits] == [12, 12, 12]
    assert len(list((tmp_path / "saved").glob("*.ckpt"))) == 2
