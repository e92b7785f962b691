"""Tests that PSP-SGD through the Trainer equals synchronous SGD if all ranks push and pull."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import lightning_hier as lh
from lightning_hier.reference import Server
from tests.trainer.fitting import Net, fit_on_ranks, fits_on_ranks, fitted, loader, weights

RANKS = 4
BATCHES = 6
PSP = partial(lh.PSPStrategy, timeout=timedelta(seconds=60))


class _Net64(Net):
    """Trains in float64, with a scheduler that changes the learning rate at every step."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.double()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def _doubles(ranks: int) -> Any:
    return loader(BATCHES, ranks=ranks, dtype=torch.float64)


def _served(model: Net) -> Tensor:
    """Train in this process, with a server of the reference for which all ranks push."""
    (optimizer,), _ = model.configure_optimizers()
    server = Server([*model.parameters()], optimizer, c=RANKS)
    inputs, targets = _doubles(RANKS).dataset.tensors
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0)).tolist()
    for step in range(BATCHES):
        optimizer.param_groups[0]["lr"] = model.lr / (1 + step)
        for rank in range(RANKS):
            # The sampler shuffles with seed 0 and gives rows to the ranks in turn.
            rows = [order[rank + RANKS * (2 * step + row)] for row in range(2)]
            loss = F.mse_loss(model(inputs[rows]), targets[rows])
            server.push(torch.autograd.grad(loss, server.w), step)
    return weights(model)


def test_all_pushes_and_pulls_equal_synchronous_sgd_at_the_scaled_rate() -> None:
    """``tests/equivalence/test_psp.py`` tests other optimizers and the unscaled rate."""
    model = partial(_Net64, lr=0.02, momentum=0.9, weight_decay=0.01, nesterov=True)
    env = {"PL_GLOBAL_SEED": "0"}
    expected = _served(model())
    for result in fit_on_ranks(RANKS, PSP, model, data=_doubles(RANKS), env=env):
        torch.testing.assert_close(result.weights, expected, rtol=0, atol=1e-10)
        assert result.metrics["hier/psp/dropped"] == result.metrics["hier/psp/staleness"] == 0
        assert result.metrics["hier/psp/rounds"] == BATCHES
        assert result.metrics["hier/psp/gradients_per_round"] == RANKS


def test_accumulated_gradients_equal_those_of_ddp() -> None:
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 10.0, "data": _doubles(2)}
    model = partial(_Net64, lr=0.02, momentum=0.9)
    strategies = partial(PSP, linear_scaling=False), "ddp"
    fits = (partial(fitted, strategy, model, **settings) for strategy in strategies)
    for result, ddp in zip(*fits_on_ranks(2, *fits), strict=True):
        torch.testing.assert_close(result.weights, ddp.weights, rtol=0, atol=1e-10)
