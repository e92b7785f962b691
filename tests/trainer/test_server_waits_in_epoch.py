"""Tests saves and metrics in the middle of an epoch while a rank of a server strategy is late.

The ranks that wait there must still serve the late rank.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.trainer.fitting import Net, fit_on_ranks, this_rank
from tests.waiting import wait_until

LIMIT = timedelta(seconds=20)


def _saves(folder: Path) -> dict[str, Any]:
    saving = ModelCheckpoint(folder, every_n_train_steps=5, save_top_k=-1)
    return {"enable_checkpointing": True, "callbacks": [saving]}


class _FewerPushes(Net):
    """Rank 0 skips two gradients, so its node makes two pushes fewer."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if batch_idx == 7:
            self.log("loss", loss, on_step=True, sync_dist=True)
        left_out = this_rank() == 0 and batch_idx in (1, 2)
        return loss * torch.nan if left_out else loss


def test_two_stage_with_locked_order(tmp_path: Path) -> None:
    """Rank 1 waits for its turn after rank 0, while rank 0 waits for rank 1 to save."""
    settings = {"group_size": 1, "push_period": 1, "double_buffering": False, "timeout": LIMIT}
    strategy = partial(lh.TwoStageASGDStrategy, **settings)
    ranks = fit_on_ranks(2, strategy, _FewerPushes, 12, **_saves(tmp_path))
    assert [result.steps for result in ranks] == [12, 12]
    gradients = [result.metrics["hier/two_stage/node/gradients"] for result in ranks]
    assert gradients == [10.0, 12.0]
    assert ranks[0].metrics["hier/two_stage/master/pushes"] == 22.0
    assert len(list(tmp_path.glob("*.ckpt"))) == 2


class _Behind(Net):
    """Rank 2 makes its first step only when the others wait for it in the middle of an epoch."""

    def __init__(self, waiting: Path) -> None:
        super().__init__(by_hand=True)
        self.waiting = waiting

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        if this_rank() == 2 and batch_idx == 0:
            wait_until(lambda: len(list(self.waiting.iterdir())) == 2, "the others to wait")
        super().training_step(batch, batch_idx)
        if batch_idx == 4:
            (self.waiting / str(this_rank())).touch()


def test_psp_by_hand_with_one_rank_behind(tmp_path: Path) -> None:
    """In manual optimization, a late rank cannot skip batches. The others wait for its steps."""
    waiting, saved = tmp_path / "waiting", tmp_path / "saved"
    waiting.mkdir()
    strategy = partial(lh.PSPStrategy, min_pushes=2, timeout=LIMIT)
    ranks = fit_on_ranks(3, strategy, partial(_Behind, waiting), 12, **_saves(saved))
    assert [result.steps for result in ranks] == [12, 12, 12]
    assert len(list(saved.glob("*.ckpt"))) == 2
