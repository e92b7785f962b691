"""Several workers on a rank as a user meets them: what is logged, saved, counted, and refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights

WORKERS = 4


def _per_rank() -> int:
    return WORKERS // int(os.environ["WORLD_SIZE"])


def _bmuf(**settings: Any) -> lh.BMUFStrategy:
    return lh.BMUFStrategy(block_size=3, virtual_workers=_per_rank(), **settings)


class _Dropout(Net):
    """Draws random numbers in every step, validates, and logs."""

    def __init__(self, *, by_hand: bool = False) -> None:
        super().__init__()
        self.double()
        self.dropout = nn.Dropout(0.5)
        self.automatic_optimization = not by_hand
        self.losses: list[float] = []

    def forward(self, batch: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.layers(batch))
        return result

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss.detach(), on_step=False, on_epoch=True, sync_dist=True)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["loss"]))


def _doubles(batches: int) -> DataLoader[Any]:
    data = loader(batches, ranks=WORKERS)
    data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    return data


def _fit(settings: dict[str, Any], by_hand: bool) -> dict[str, Any]:
    pl.seed_everything(7, verbose=False)
    model = _Dropout(by_hand=by_hand)
    trainer = make_trainer(_bmuf(), max_epochs=2, **settings)
    trainer.fit(model, _doubles(8), _doubles(2))
    return {
        "weights": weights(model),
        "losses": model.losses,
        "validated": float(trainer.callback_metrics["val_loss"]),
        "steps": trainer.global_step,
        "batches": trainer.num_training_batches,
    }


@pytest.mark.parametrize(
    ("settings", "by_hand"),
    [
        ({"val_check_interval": 2}, False),
        ({"accumulate_grad_batches": 2}, False),
        ({}, True),
        pytest.param(
            {"precision": "64-true", "gradient_clip_val": 0.1}, False, marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_is_that_of_a_rank_for_each_worker(settings: dict[str, Any], by_hand: bool) -> None:
    """With dropout: every worker draws what its rank would have drawn."""
    expected = run_ranks(_fit, WORKERS, settings, by_hand)[0]
    for ranks in (1, 2):
        for found in run_ranks(_fit, ranks, settings, by_hand):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def _describe() -> tuple[dict[str, Any], int]:
    strategy = _bmuf()
    trainer = make_trainer(strategy)
    trainer.fit(_Dropout(), _doubles(3))
    return strategy.describe(), strategy.world_size


def test_eta_follows_the_workers_and_not_the_ranks() -> None:
    ((described, ranks),) = run_ranks(_describe, 1)
    assert (described["virtual_workers"], ranks) == (WORKERS, 1)


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter([])


class _Transfers(Net):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class _TwoOptimizers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(own.parameters(), lr=0.1) for own in self.layers[::2]]


def _mistake(what: str) -> None:
    models = {"hook": _Transfers, "optimizers": _TwoOptimizers}
    model: Net = models.get(what, Net)()
    data: Any = DataLoader(_Stream()) if what == "stream" else loader(3)
    choices: dict[str, dict[str, Any]] = {
        "precision": {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]},
        "ema": {"callbacks": [EMAWeightAveraging()]},
    }
    settings = choices.get(what, {})
    make_trainer(lh.BMUFStrategy(virtual_workers=2), **settings).fit(model, data)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("stream", "virtual_workers=2 divides the training data among 4 workers, and DataLoader"),
        ("hook", "on_before_batch_transfer (use on_after_batch_transfer)"),
        ("precision", "precision='16-mixed' (use 'bf16-mixed')"),
        ("ema", "can't be combined with EMAWeightAveraging"),
        ("optimizers", "can't be combined with 2 optimizers"),
    ],
)
def test_what_cannot_be_trained_is_an_error_on_every_rank(what: str, says: str) -> None:
    for error in run_ranks(_mistake, 2, what, expect_failure=True):
        assert error.startswith("ValueError") and says in error


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: lh.BMUFStrategy(virtual_workers=0), "at least 1, got 0"),
        (lambda: lh.BMUFStrategy(virtual_workers=2, warmup_steps=3), "warmup_steps=3"),
        (lambda: lh.BMUFStrategy(virtual_workers=2, overlap=True), "overlap=True"),
        (lambda: lh.BMUFStrategy(virtual_workers=2, on_nonfinite="exclude"), "'exclude'"),
        (lambda: lh.BMUFStrategy(virtual_workers=2, uneven_batches="join"), "'join'"),
        (lambda: lh.GTCStrategy(virtual_workers=2), "group_size='world'"),
        (lambda: lh.BMUFGTCStrategy(virtual_workers=2), "group_size='node'"),
    ],
)
def test_settings_that_cannot_be_combined(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


class _Thaws(Net):
    """All but the last layer is frozen until an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.layers[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.layers[0].requires_grad_(self.current_epoch >= self.epoch)


def _thaw(epoch: int) -> None:
    strategy = lh.BMUFStrategy(virtual_workers=2, find_unused_parameters=True)
    make_trainer(strategy, max_epochs=2).fit(_Thaws(epoch), loader(3, ranks=4))


def test_parameters_cannot_be_unfrozen_once_workers_have_trained() -> None:
    run_ranks(_thaw, 2, 0)
    for error in run_ranks(_thaw, 2, 1, expect_failure=True):
        assert "can't be combined with unfreezing" in error


def _through(folder: Path) -> Tensor:
    saves = ModelCheckpoint(folder, every_n_train_steps=8, save_top_k=-1)
    settings: dict[str, Any] = {"enable_checkpointing": True, "callbacks": [saves]}
    pl.seed_everything(7, verbose=False)
    model = _Dropout()
    make_trainer(_bmuf(), max_epochs=2, **settings).fit(model, _doubles(6))
    return weights(model)


def _resumed(folder: Path) -> Tensor:
    pl.seed_everything(7, verbose=False)  # the sampler's
    torch.manual_seed(50)  # what a resume must not depend on
    model = _Dropout()
    path = folder / "epoch=1-step=8.ckpt"
    make_trainer(_bmuf(), max_epochs=2).fit(model, _doubles(6), ckpt_path=path, weights_only=True)
    return weights(model)


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_on_other_numbers_of_ranks(ranks: int, tmp_path: Path) -> None:
    """Exactly: a job goes on when half of the cluster is gone, or has come back."""
    through = run_ranks(_through, ranks, tmp_path)[0]
    for fewer_or_more in (1, 2, 4):
        for found in run_ranks(_resumed, fewer_or_more, tmp_path):
            torch.testing.assert_close(found, through, rtol=0, atol=1e-9)
