"""Several optimizers under GTC, with toggled optimizers and loss scaling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.trainer.fitting import GTC, Net, fit_on_ranks, this_rank
from tests.trainer.trainer_settings import scaled


class _Adversaries(Net):
    """A generator and a discriminator; one loss of the latter overflows on a rank."""

    def __init__(self) -> None:
        super().__init__(by_hand=True)
        self.made, self.judged = nn.Linear(4, 4), nn.Linear(4, 1)
        del self.layers

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        maker, judge = self.optimizers()
        real = batch[0]
        bad = 1e38 if batch_idx == 2 and this_rank() == 1 else 1.0

        def of_judge() -> Tensor:
            false = self.judged(self.made(real).detach())
            return ((self.judged(real) - 1) * bad * bad).square().mean() + false.square().mean()

        self._step(judge, of_judge)
        self._step(maker, lambda: (self.judged(self.made(real)) - 1).square().mean())
        self.notes.append(bool(self.made.weight.grad.isfinite().all()))

    def _step(self, optimizer: Any, loss: Callable[[], Tensor]) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss())
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.made, self.judged)]


def test_an_overflow_skips_one_step_of_one_optimizer() -> None:
    strategy = partial(GTC, density=0.3, dense_below=0, find_unused_parameters=True)
    first, _ = fit_on_ranks(2, strategy, _Adversaries, **scaled())
    assert first.notes == [True] * 6
    assert first.loss_scale == 512.0
