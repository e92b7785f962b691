"""Tests precisions, loss scaling, gradient clipping and synchronised BatchNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from lightning_hier.strategies.step_gradients import StepGradients
from tests.ranks import run_ranks
from tests.trainer.breaking import Breaks
from tests.trainer.fitting import (
    BMUF_GTC,
    GTC,
    Net,
    all_equal,
    fit,
    fit_on_ranks,
    scaled,
    this_rank,
)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-mixed", torch.float32), ("64-true", torch.float64), ("bf16-true", torch.bfloat16)],
)
def test_ranks_end_with_one_finite_model(precision: str, dtype: torch.dtype) -> None:
    model = partial(Net, batchnorm=True)
    ranks = fit_on_ranks(4, partial(BMUF_GTC, block_size=3), model, 8, precision=precision)
    for name, value in ranks[0].state.items():
        assert all(torch.equal(result.state[name], value) for result in ranks), name
        assert value.isfinite().all()
    assert {result.weights.dtype for result in ranks} == {dtype}


@pytest.mark.parametrize(
    ("group_size", "of", "skipping"),
    [(1, "auto", [1]), (2, "gradient", [0, 1]), (2, "update", [1])],
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


class _Adversaries(Net):
    """A GAN with toggled optimizers. One loss of the discriminator overflows on rank 1."""

    def __init__(self) -> None:
        super().__init__(by_hand=True)
        self.generator, self.discriminator = nn.Linear(4, 4), nn.Linear(4, 1)
        del self.layers

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        of_generator, of_discriminator = self.optimizers()
        real = batch[0]
        bad = 1e38 if batch_idx == 2 and this_rank() == 1 else 1.0

        def discriminator_loss() -> Tensor:
            fake = self.discriminator(self.generator(real).detach())
            of_real = ((self.discriminator(real) - 1) * bad * bad).square().mean()
            return of_real + fake.square().mean()

        def generator_loss() -> Tensor:
            return (self.discriminator(self.generator(real)) - 1).square().mean()

        self._step(of_discriminator, discriminator_loss)
        self._step(of_generator, generator_loss)
        self.notes.append(bool(self.generator.weight.grad.isfinite().all()))

    def _step(self, optimizer: Any, loss: Callable[[], Tensor]) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss())
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(part.parameters(), lr=0.1)
            for part in (self.generator, self.discriminator)
        ]


def test_an_overflow_skips_one_step_of_one_optimizer() -> None:
    strategy = partial(GTC, density=0.3, dense_below=0, find_unused_parameters=True)
    first, _ = fit_on_ranks(2, strategy, _Adversaries, **scaled())
    assert first.notes == [True] * 6
    assert first.loss_scale == 512.0


SCALE = 1024.0


def _taken(kind: Any, factors: list[float], **settings: Any) -> list[Tensor | None]:
    """Gradients at each step, which equal the factors, or None where the step was skipped."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = kind([parameter], lr=0.5, **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    gradients_of_steps: list[Tensor | None] = []

    def take() -> None:
        assert parameter.grad is not None
        gradients_of_steps.append(parameter.grad.clone())

    gradients = StepGradients(optimizer, check=lambda: None, take=take)
    for factor in factors:
        gradients.taken = False
        scaler.scale((factor * parameter).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if not gradients.taken:
            gradients_of_steps.append(None)
        optimizer.zero_grad()
    assert torch.equal(parameter, torch.ones(3)) and not optimizer.state[parameter]
    return gradients_of_steps


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimizers_get_unscaled_finite_gradients(kind: Any) -> None:
    """A GradScaler leaves unscaling and the check to a fused optimizer."""
    factors = [0.25, float("inf"), 3.0]
    plain = _taken(kind, factors)
    fused = _taken(kind, factors, fused=True)
    for steps in (plain, fused):
        assert [None if one is None else one.tolist() for one in steps] == [
            [0.25] * 3,
            None,
            [3.0] * 3,
        ]
