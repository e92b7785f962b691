"""Tests precisions, loss scaling, gradient clipping and synchronised BatchNorm."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.breaking import Breaks
from tests.trainer.fitting import (
    BMUF_GTC,
    Net,
    all_equal,
    fit,
    fit_on_ranks,
    scaled,
)


@pytest.mark.parametrize(
    ("group_size", "of", "skipping"),
    [(2, "gradient", [0, 1]), (2, "update", [1])],
)
def test_step_that_one_rank_skips_leaves_ranks_in_step(
    group_size: int, of: str, skipping: list[int]
) -> None:
    """Rank 1 skips the step, and with GTC of gradients all ranks of its group.

    Blocks still end at the same step on all ranks.
    """
    overflows = partial(Breaks, 3, (1,), "loss", 1e38)
    ranks = fit_on_ranks(
        4, partial(BMUF_GTC, group_size=group_size, of=of), overflows, 9, **scaled()
    )
    assert [rank for rank, own in enumerate(ranks) if own.loss_scale == 512.0] == skipping
    if len(skipping) == group_size:  # otherwise, residuals of updates are in local models
        assert all_equal(result.seen[3] for result in ranks)  # the first block's end
        assert all_equal(result.seen[7] for result in ranks)
    assert not all_equal(result.seen[4] for result in ranks)
    assert all_equal(result.weights for result in ranks)
    assert all(result.metrics["hier/gtc/residual_norm"] < float("inf") for result in ranks)
    # The synchronisation after the skipped step has changed the weights of all ranks.
    assert not any(torch.equal(result.seen[2], result.seen[3]) for result in ranks)


class _Clipped(Net):
    """Notes the norm of the clipped gradients."""

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        super().configure_gradient_clipping(*args, **kwargs)
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        self.notes.append(float(nn.utils.get_total_norm(gradients)))


def test_clipping_acts_on_what_the_group_reconstructed() -> None:
    strategy = partial(lh.GTCStrategy, threshold=0.05, dense_below=0, warmup_steps=0)
    ranks = fit_on_ranks(2, strategy, _Clipped, gradient_clip_val=0.01)
    assert all(0.0 < max(result.notes) <= 0.01 * (1 + 1e-4) for result in ranks)
    assert all_equal(result.weights for result in ranks)


class _Converted(Net):
    """Notes the ranks of the process group of SyncBatchNorm."""

    def on_fit_start(self) -> None:
        assert isinstance(self.layers[1], nn.SyncBatchNorm)
        self.notes += torch.distributed.get_process_group_ranks(self.layers[1].process_group)


def _converted() -> list[int]:
    """Return the ranks of SyncBatchNorm.

    SyncBatchNorm cannot run on the CPU, and DDP refuses it there. So no step is trained.
    """
    handle = "_passing_sync_batchnorm_handle"
    setattr(DistributedDataParallel, handle, lambda self, module: None)
    model = _Converted(batchnorm=True)
    fit(BMUF_GTC(), 0, model, sync_batchnorm=True)
    return model.notes


def test_sync_batchnorm_spans_the_group() -> None:
    assert run_ranks(_converted, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
