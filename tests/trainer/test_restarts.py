"""What a group leaves behind that was sick and starts again from the global model."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.breaking import NAN, Breaks, caught_in
from tests.trainer.fitting import fit, loader, make_trainer, weights


def _scaled(where: str, value: float) -> tuple[float, float, list[str], Tensor]:
    """Ten steps in fp16, blocks of five; the scale and what was excluded."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    make = partial(lh.BMUFStrategy, block_size=5, on_nonfinite="exclude", warmup_steps=0)
    said, model = caught_in(
        make,
        *(1, (1,), where, value),
        batches=10,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
    )
    return scaler.get_scale(), model.excluded, said, weights(model)


def test_step_that_loss_scaling_skips_makes_no_model_sick() -> None:
    """The loss of one rank is beyond half precision once: it skips, and nothing else happens."""
    results = run_ranks(_scaled, 2, "loss", 1e38)
    assert [scale for scale, *_ in results] == [1024.0, 512.0]
    for _, excluded, said, final in results:
        assert excluded == 0 and not said
        assert torch.equal(final, results[0][-1])


def test_loss_scale_of_a_group_that_restarts_is_what_it_was_in_health() -> None:
    """Its weight is NaN from the second step on, so four steps of its first block are skipped."""
    results = run_ranks(_scaled, 2, "layers.2.weight", NAN)
    assert [scale for scale, *_ in results] == [1024.0, 1024.0]
    for _, excluded, _, final in results:
        assert excluded == 1
        assert torch.equal(final, results[0][-1]) and final.isfinite().all()


def _thresholds() -> tuple[list[float | None], list[float | None], float, Tensor]:
    """Of the group's GTC after the block in which it diverged, and a step later."""
    seen: list[list[float | None]] = []
    norms: list[float] = []

    class Notes(Breaks):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            memory = self.trainer.strategy._fit_session.worker.memory
            seen.append([tensor.threshold for tensor in memory.tensors.values()])
            norms.append(memory.residual_norm())

    model = Notes(3, (2,), "loss")
    strategy = lh.BMUFGTCStrategy(
        group_size=2,
        block_size=5,
        density=0.2,
        dense_below=0,
        on_nonfinite="exclude",
        warmup_steps=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(strategy, 9, model)
    return seen[4], seen[5], norms[4], weights(model)


def test_thresholds_and_residuals_of_a_group_that_restarts_begin_anew() -> None:
    """The first step after the restart is averaged exactly again and tells the scale."""
    results = run_ranks(_thresholds, 4)
    for rank, (at_end, later, norm, final) in enumerate(results):
        assert len(at_end) == len(later) == 6
        assert {threshold is None for threshold in at_end} == {rank >= 2}
        assert (norm == 0.0) == (rank >= 2)
        assert all(threshold is not None for threshold in later)
        assert torch.equal(final, results[0][-1]) and final.isfinite().all()


def _in_parts(folder: Path) -> list[tuple[Tensor, float, float, float | None]]:
    """Three epochs in one run, and in two that part where a group is sick in mid-block."""
    ends = []

    def train(epochs: int, **more: Any) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
        trainer = make_trainer(
            lh.BMUFStrategy(block_size=5, on_nonfinite="exclude", warmup_steps=0),
            max_epochs=epochs,
            plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        )
        model = Breaks(2, (1,), "layers.2.weight")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(model, loader(4), **more)
        worker = trainer.strategy._ended.worker
        ends.append((weights(model), model.excluded, scaler.get_scale(), worker.loss_scale))
        return trainer

    train(3)
    train(1).save_checkpoint(folder / "sick.ckpt")
    train(3, ckpt_path=folder / "sick.ckpt")
    return ends


def test_run_that_is_resumed_while_a_group_is_sick_goes_on_exactly(tmp_path: Path) -> None:
    """Rank 1 is sick from the third batch of each epoch to its block's end."""
    for (whole, *counts), _, (resumed, *counts_too) in run_ranks(_in_parts, 2, tmp_path):
        assert torch.equal(whole, resumed)
        assert counts == counts_too
        assert counts[0] == 3  # blocks end after steps 5, 10 and, with training, 12
