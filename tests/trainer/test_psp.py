"""Tests PSP-SGD through the Trainer: validation, late ranks, NaN gradients, precisions, saves.

Validation and the warm-up also under two-stage ASGD.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    Net,
    TwoOptimizers,
    Watched,
    all_equal,
    fit,
    fit_on_ranks,
    fits_on_ranks,
    fitted,
    loader,
    scaled,
    this_rank,
)
from tests.waiting import leave_mark, wait_until

RANKS = 4
PSP = partial(lh.PSPStrategy, timeout=timedelta(seconds=60))
TWO_STAGE = partial(lh.TwoStageASGDStrategy, timeout=timedelta(seconds=60))


def test_validation_sees_one_model_on_all_ranks_and_changes_nothing() -> None:
    strategy = partial(PSP, min_pushes=1.0)
    settings: dict[str, Any] = {"validate": 2, "num_sanity_val_steps": 0}
    # Without hierarchical_lr, late gradients of both groups add up, and a larger rate diverges.
    of_nodes = {"hierarchical_lr": False, "push_period": 1, "refresh_period": 2}
    two_stage = partial(TWO_STAGE, group_size=2, **of_nodes), partial(Watched, lr=0.01)
    often, seldom, nodes = fits_on_ranks(
        RANKS,
        *(
            partial(fitted, *made, val_check_interval=every, **settings)
            for made, every in (((strategy, Watched), 2), ((strategy, Watched), 6), (two_stage, 2))
        ),
    )
    for ranks, validations in ((often, 3), (seldom, 1), (nodes, 3)):
        first = ranks[0]
        assert len(first.notes) == validations
        for other in ranks[1:]:
            assert all(map(torch.equal, first.notes, other.notes))
            assert other.logged == first.logged
            assert torch.equal(other.weights, first.weights)
        assert torch.equal(first.notes[-1][: len(first.weights)], first.weights.double())
    assert not torch.equal(nodes[0].notes[0], nodes[0].notes[-1])
    for mine, theirs in zip(often, seldom, strict=True):
        assert all(torch.equal(value, theirs.state[name]) for name, value in mine.state.items())


class _Late(Net):
    """The last rank starts each batch five steps after rank 0, or at the end of its epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.done = folder / "done"

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.notes.append(batch_idx)
        if this_rank() == RANKS - 1:
            last_of_epoch = (self.current_epoch + 1) * self.trainer.num_training_batches
            self._wait_for(min(self.global_step + 5, int(last_of_epoch)))
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if this_rank() == 0:
            leave_mark(self.done.parent, self.done.name, str(self.global_step))

    def _wait_for(self, step: int) -> None:
        wait_until(
            lambda: self.done.exists() and int(self.done.read_text()) >= step,
            f"rank 0 to make {step} steps by itself",
        )


def test_late_rank_holds_up_nobody_and_leaves_out_what_the_others_have_done(tmp_path: Path) -> None:
    strategy = partial(PSP, min_pushes=RANKS - 1)
    ranks = fit_on_ranks(RANKS, strategy, partial(_Late, tmp_path), 20, max_epochs=2)
    assert all_equal(result.weights for result in ranks)
    assert {result.steps for result in ranks} == {40}
    computed = [len(result.notes) for result in ranks]
    assert computed[:-1] == [40] * (RANKS - 1)
    # The late rank computes one of five batches, or fewer if the others continue meanwhile.
    assert 2 <= computed[-1] <= 2 * (20 // 5 + 1)
    assert sum(result.metrics["hier/psp/dropped"] for result in ranks) > 0


class _Poisoned(Net):
    """The gradient of one rank is not finite at one step."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss * float("inf") if (this_rank(), batch_idx) == (1, 2) else loss


def test_gradient_that_is_not_finite_is_kept_out() -> None:
    ranks = fit_on_ranks(3, PSP, _Poisoned)
    assert ranks[0].weights.isfinite().all()
    assert all_equal(result.weights for result in ranks)


class _Two(TwoOptimizers):
    """SGD and Adam, which step at different batches, in float64."""

    def __init__(self) -> None:
        super().__init__(every=2)
        self.double()

    def configure_optimizers(self) -> Any:
        front, back = self.layers[0].parameters(), self.layers[2].parameters()
        return torch.optim.SGD(front, lr=0.05), torch.optim.Adam(back, lr=0.01)


def test_several_optimizers_in_manual_optimization_equal_ddp() -> None:
    """Also those of two-stage ASGD, in its warm-up, with two nodes and with one."""
    two_stage = (partial(TWO_STAGE, group_size=size, warmup_steps=100) for size in (1, 2))
    strategies = "ddp", partial(PSP, linear_scaling=False), *two_stage
    data = loader(6, ranks=2, dtype=torch.float64)
    by_ddp, *others = fits_on_ranks(
        2, *(partial(fitted, strategy, _Two, data=data) for strategy in strategies)
    )
    for ranks in others:
        for mine, theirs in zip(ranks, by_ddp, strict=True):
            torch.testing.assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-10)


class _Overflows(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * (1e38 if batch_idx == 1 else 1.0)


def test_fused_optimizers_get_unscaled_finite_gradients() -> None:
    """A GradScaler leaves unscaling and the check to a fused optimizer."""
    nets = [partial(_Overflows, optimizer="AdamW", fused=fused) for fused in (False, True)]
    plain, fused = fits_on_ranks(2, *(partial(fitted, PSP, net, **scaled()) for net in nets))
    for one, other in zip(plain, fused, strict=True):
        assert one.loss_scale == other.loss_scale == 512.0
        torch.testing.assert_close(one.weights, other.weights)
        assert not torch.equal(one.seen[0], one.weights)


class _Tied(Net):
    """Two layers share a weight, as input and output of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.layers(batch)[:, :2]
        return result


class _SaveAfterStep(Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if trainer.global_step == 2:
            if trainer.is_global_zero:
                with torch.no_grad():  # so that the module differs from the servers
                    pl_module.layers[0].weight.add_(1.0)
            trainer.save_checkpoint(self.path)


def _saved_tied(path: str) -> bool:
    fit("psp", 3, _Tied(), callbacks=[_SaveAfterStep(path)])
    saved = torch.load(path, weights_only=True)["state_dict"]
    return torch.equal(saved["layers.0.weight"], saved["layers.1.weight"])


def test_tied_weight_is_saved_under_all_its_names(tmp_path: Path) -> None:
    assert all(run_ranks(_saved_tied, 2, str(tmp_path / "tied.ckpt")))
