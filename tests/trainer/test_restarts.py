"""Tests the loss scale and GTC state of an excluded group that restarts from the global model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import run_ranks
from tests.trainer.breaking import NAN, Breaks
from tests.trainer.fitting import BMUF, BMUF_GTC, fit_on_ranks, loader, make_trainer, weights
from tests.trainer.trainer_settings import scaled

EXCLUDE = partial(BMUF, block_size=5, on_nonfinite="exclude")


@pytest.mark.parametrize(
    ("where", "value", "scales", "excluded"),
    [("loss", 1e38, [1024.0, 512.0], 0), ("layers.2.weight", NAN, [1024.0, 1024.0], 1)],
    ids=["a step is skipped", "a group restarts"],
)
def test_loss_scale_after_an_overflow_and_of_a_group_that_restarts(
    where: str, value: float, scales: list[float], excluded: int
) -> None:
    """A loss beyond half precision skips one step and halves the scale.

    A weight that is NaN from the second step on skips four steps of its block. The group then
    restarts with the loss scale that it had before.
    """
    ranks = fit_on_ranks(2, EXCLUDE, partial(Breaks, 1, (1,), where, value), 10, **scaled())
    assert [result.loss_scale for result in ranks] == scales
    for result in ranks:
        assert result.metrics.get("hier/block/excluded", 0.0) == excluded
        assert excluded or not any("NaN" in warning for warning in result.warned)
        assert torch.equal(result.weights, ranks[0].weights) and result.weights.isfinite().all()


class _Notes(Breaks):
    """Notes the thresholds of GTC and the norm of its residuals after every batch."""

    def on_train_batch_end(self, *_: Any) -> None:
        memory = self.trainer.strategy._fit_session.worker.memory
        thresholds = [tensor.threshold for tensor in memory.tensors.values()]
        self.notes.append((thresholds, memory.residual_norm()))


def test_restart_of_a_group_resets_thresholds_and_residuals() -> None:
    """The first step after the restart is averaged exactly, and sets the thresholds."""
    strategy = partial(BMUF_GTC, block_size=5, dense_below=0, on_nonfinite="exclude")
    ranks = fit_on_ranks(4, strategy, partial(_Notes, 3, (2,), "loss"), 9)
    for rank, result in enumerate(ranks):
        (at_end, norm), (later, _) = result.notes[4:6]
        assert len(at_end) == len(later) == 6
        assert {threshold is None for threshold in at_end} == {rank >= 2}
        assert (norm == 0.0) == (rank >= 2)
        assert all(threshold is not None for threshold in later)
        assert torch.equal(result.weights, ranks[0].weights) and result.weights.isfinite().all()


def _in_parts(folder: Path) -> list[tuple[Tensor, float, float, float | None]]:
    """Three epochs in one run, and in two. The first of the two ends while a group has NaN."""
    ends = []
    for epochs, path in ((3, None), (1, None), (3, folder / "sick.ckpt")):
        trainer = make_trainer(EXCLUDE(), max_epochs=epochs, **scaled(growth_interval=4))
        model = Breaks(2, (1,), "layers.2.weight")
        trainer.fit(model, loader(4), ckpt_path=path)
        if epochs == 1:
            trainer.save_checkpoint(folder / "sick.ckpt")
        excluded = model.metrics.get("hier/block/excluded", 0.0)
        scale = trainer.precision_plugin.scaler.get_scale()
        ends.append((weights(model), excluded, scale, trainer.strategy._ended.worker.loss_scale))
    return [ends[0], ends[2]]


def test_resume_while_a_group_has_nan_is_exact(tmp_path: Path) -> None:
    """Rank 1 has NaN from the third batch of each epoch to the end of the block."""
    for (whole, *counts), (resumed, *counts_too) in run_ranks(_in_parts, 2, tmp_path):
        assert torch.equal(whole, resumed)
        assert counts == counts_too
        assert counts[0] == 3  # blocks end after steps 5, 10 and, with training, 12
