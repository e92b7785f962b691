"""Several optimizers under GTC, with toggled optimizers and loss scaling."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import loader, make_trainer


class _Adversaries(pl.LightningModule):
    """A generator and a discriminator; one loss of the latter overflows on a rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.automatic_optimization = False
        self.made, self.judged = nn.Linear(4, 4), nn.Linear(4, 1)
        self.sound: list[bool] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        maker, judge = self.optimizers()
        real = batch[0]
        bad = 1e38 if batch_idx == 2 and os.environ["RANK"] == "1" else 1.0

        def of_judge() -> Tensor:
            false = self.judged(self.made(real).detach())
            return ((self.judged(real) - 1) * bad * bad).square().mean() + false.square().mean()

        self._step(judge, of_judge)
        self._step(maker, lambda: (self.judged(self.made(real)) - 1).square().mean())
        self.sound.append(bool(self.made.weight.grad.isfinite().all()))

    def _step(self, optimizer: Any, loss: Callable[[], Tensor]) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss())
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.made, self.judged)]


def _train() -> tuple[list[bool], float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    strategy = lh.GTCStrategy(
        density=0.3, dense_below=0, find_unused_parameters=True, warmup_steps=0
    )
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    model = _Adversaries()
    make_trainer(strategy, plugins=[plugin]).fit(model, loader(6))
    return model.sound, scaler.get_scale()


def test_an_overflow_skips_one_step_of_one_optimizer() -> None:
    (sound, scale), _ = run_ranks(_train, 2)
    assert sound == [True] * 6
    assert scale == 512.0
