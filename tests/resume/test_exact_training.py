"""Tests exact resume with loss scaling, two optimizers, unfreezing and weighted groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, Unfreeze, check_exact, stop_and_go_on
from tests.trainer.fitting import (
    AVERAGING,
    BMUF_ADAM,
    BMUF_GTC,
    GTC,
    scaled,
    this_rank,
    weights,
)


class OverflowingNet(DropoutNet):
    """Rank 1 overflows at one batch of every epoch, so its loss scale differs from rank 0's."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss * 1e38 * 1e38 if this_rank() == 1 and batch_idx == 3 else loss


def _scaled(strategy: Any, folder: Path) -> list[str]:
    plugins: list[Any] = []

    def make_strategy() -> Any:
        plugins.extend(scaled(growth_interval=3)["plugins"])
        new = strategy()
        new.precision_plugin = plugins[-1]
        return new

    differences = stop_and_go_on(
        make_strategy, "on_train_batch_end", 7, folder, make_model=OverflowingNet, max_epochs=2
    )
    whole, resumed = [plugin.scaler.state_dict() for plugin in plugins]
    assert (whole["scale"], whole["_growth_tracker"]) != (1024.0, 0)  # the scaler was used
    if whole != resumed:
        differences.append(f"scaler: {whole} against {resumed}")
    return differences


def test_scaled_gradients(tmp_path: Path) -> None:
    """Every rank restores its own loss scale. Residuals keep the scale of their gradients."""
    assert run_ranks(_scaled, 4, BMUF_GTC, tmp_path) == [[]] * 4


class TwoOptimizers(DropoutNet):
    """Manual optimization, in which the second optimizer adds up the gradients of two batches."""

    def __init__(self, optimizer: str = "SGD", *, seed: int = 11) -> None:
        super().__init__(optimizer, seed=seed, by_hand=True)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        first, second = self.optimizers()
        loss = self.loss(batch)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if batch_idx % 2:
            second.step()
            second.zero_grad()
        self.seen.append(weights(self))
        return loss

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(self.net[0].parameters(), lr=0.02),
            torch.optim.Adam(self.net[1:].parameters(), lr=0.05),
        ]


def test_two_optimizers_by_hand(tmp_path: Path) -> None:
    """Each optimizer is in the middle of its own block, and the second between two batches."""
    check_exact(2, BMUF_ADAM, tmp_path, number=6, make_model=TwoOptimizers, max_epochs=2)


class UnfreezesItself(DropoutNet):
    """Its first layer is frozen at first. A hook freezes or unfreezes it at given epochs."""

    def __init__(self, *args: Any, trainable: dict[int, bool], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.net[0].requires_grad_(False)
        self.trainable = trainable

    def on_train_epoch_start(self) -> None:
        if self.current_epoch in self.trainable:
            self.net[0].requires_grad_(self.trainable[self.current_epoch])


def test_a_layer_that_the_module_unfreezes(tmp_path: Path) -> None:
    """The layer is trainable after the resume, where the hook does not set it again."""
    strategy = partial(AVERAGING, block_size=7, find_unused_parameters=True)
    model = partial(UnfreezesItself, trainable={1: True, 2: True})
    check_exact(2, strategy, tmp_path, make_model=model)


class Unfreezing(DropoutNet):
    """Its optimizer holds the parameters that are trainable at first."""

    def configure_optimizers(self) -> Any:
        trainable = nn.ParameterList(p for p in self.parameters() if p.requires_grad)
        return torch.optim.SGD(trainable.parameters(), lr=0.05, momentum=0.9)


def _unfreeze() -> list[Callback]:
    return [Unfreeze()]


def test_after_a_layer_is_unfrozen(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"make_model": Unfreezing, "make_callbacks": _unfreeze}
    check_exact(4, BMUF_GTC, tmp_path, **settings)


class _UsedInTheFirstBatch(DropoutNet):
    """Has a layer that only the first of the two batches of a step uses."""

    def __init__(self, optimizer: str = "SGD", *, seed: int = 11) -> None:
        super().__init__(optimizer, seed=seed)
        self.sometimes = nn.Linear(4, 4)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs = self.sometimes(batch[0]) if batch_idx % 2 == 0 else batch[0]
        return self.loss([inputs, batch[1]])


def test_layer_that_the_rest_of_an_accumulated_step_does_not_use(tmp_path: Path) -> None:
    """The save is between both batches of a step, after the third batch of an epoch.

    DDP still records that the first batch has used the layer.
    """
    strategy = partial(GTC, dense_below=0, find_unused_parameters=True)
    settings: dict[str, Any] = {"make_model": _UsedInTheFirstBatch, "accumulate_grad_batches": 2}
    check_exact(2, strategy, tmp_path, number=8, max_epochs=2, **settings)


class _Clip(Callback):
    """Clips the weights after every step, before the checkpoint is saved."""

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        for parameter in pl_module.parameters():
            parameter.clamp_(-0.2, 0.2)


def _clip() -> list[Callback]:
    return [_Clip()]


def test_weights_that_a_callback_writes_with_gtc_of_updates(tmp_path: Path) -> None:
    """What it has written is neither in the model of the group nor in the residuals."""
    strategy = partial(GTC, of="update")
    settings: dict[str, Any] = {"make_callbacks": _clip, "optimizer": "AdamW", "max_epochs": 2}
    check_exact(2, strategy, tmp_path, **settings)


class _Counting(DropoutNet):
    """Returns a number of samples that differs between ranks and between batches."""

    def batch_samples(self, batch: Any) -> int:
        rank, number = self.global_rank, self.trainer.fit_loop.batch_idx
        return 1 + 4 * rank + number % (2 + rank)


def test_groups_that_are_weighted_by_samples(tmp_path: Path) -> None:
    """One of two fragments is in flight."""
    settings: Any = {"block_size": 4, "weighting": "samples", "outer_momentum": "auto"}
    sync = lh.DiLoCo(**settings, fragments=2, overlap=2)
    make = partial(lh.HierarchicalStrategy, group_size=1, block_sync=sync, warmup_steps=0)
    check_exact(2, make, tmp_path, make_model=_Counting, max_epochs=2)
