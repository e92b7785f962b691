"""Tests that StochasticWeightAveraging averages global models, and ``fit`` leaves the average."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, check_exact, shuffled, validation
from tests.trainer.fitting import BMUF, BMUF_GTC, make_trainer, this_rank, weights

STRATEGIES: dict[str, tuple[int, Any]] = {
    "psp": (2, lh.PSPStrategy),
    "two_stage_asgd": (2, lh.TwoStageASGDStrategy),
    "bmuf": (2, partial(BMUF, block_size=7)),
    "bmuf_gtc": (4, partial(BMUF_GTC, block_size=7)),
}


class PlainNet(DropoutNet):
    """Has no BatchNorm, which needs another epoch for its statistics."""

    def __init__(self, optimizer: str = "SGD", *, seed: int = 11) -> None:
        super().__init__(optimizer, seed=seed)
        self.net[1] = nn.Identity()


def _swa() -> list[Callback]:
    return [StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=2)]


class _Watch(Callback):
    """Notes the model at the start of every epoch and of every validation."""

    def __init__(self) -> None:
        self.begins: list[Tensor] = []
        self.validated: list[Tensor] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.begins.append(weights(pl_module))

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.validated.append(weights(pl_module))


def _train(make_model: Any, strategy: Any) -> dict[str, Any]:
    torch.manual_seed(this_rank())
    model, watch = make_model(), _Watch()
    trainer = make_trainer(
        strategy(), callbacks=[watch, *_swa()], max_epochs=4, num_sanity_val_steps=0
    )
    trainer.fit(model, shuffled(5), validation(2))
    return {
        "begins": watch.begins,
        "validated": watch.validated,
        "end": weights(model),
        "state": model.state_dict(),
    }


@pytest.mark.parametrize(
    ("make_model", "name"),
    [
        (PlainNet, "bmuf"),
        (DropoutNet, "bmuf"),
        (DropoutNet, "bmuf_gtc"),
        (DropoutNet, "psp"),
        pytest.param(DropoutNet, "two_stage_asgd", marks=pytest.mark.slow),
    ],
)
def test_fit_leaves_the_average_of_global_models(make_model: Any, name: str) -> None:
    """With BatchNorm, another epoch computes the statistics of the average.

    At its end, Lightning calls the optimizer once without gradients. This step would end the third
    block.
    """
    world_size, strategy = STRATEGIES[name]
    results = run_ranks(_train, world_size, make_model, strategy)
    mean = torch.stack(results[0]["begins"][1:4]).double().mean(0)
    for result in results:
        torch.testing.assert_close(result["end"].double(), mean, rtol=1e-5, atol=1e-6)
        for begin, first in zip(result["begins"], results[0]["begins"], strict=True):
            assert torch.equal(begin, first)  # the global model
        if make_model is DropoutNet:
            torch.testing.assert_close(result["validated"][-1].double(), mean, rtol=1e-5, atol=1e-6)
            assert not torch.equal(result["state"]["net.1.running_mean"], torch.zeros(8))
        for key, value in result["state"].items():
            assert torch.equal(value, results[0]["state"][key]), key


@pytest.mark.parametrize("make_model", [PlainNet, DropoutNet])
def test_resume_at_the_end_of_an_epoch(make_model: Any, tmp_path: Path) -> None:
    """In the middle of an epoch, Lightning does not restore the schedule of the callback."""
    hook = {"hook": "on_train_epoch_end", "number": 2, "max_epochs": 4}
    settings: dict[str, Any] = {"make_model": make_model, "make_callbacks": _swa, **hook}
    check_exact(2, STRATEGIES["bmuf"][1], tmp_path, **settings)
