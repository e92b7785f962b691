"""What hooks write while parameter servers show the model: buffers stay, parameters can't."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.trainer.fitting import Net, fit

STRATEGIES = {
    "psp": lh.PSPStrategy,
    "two-stage": partial(lh.TwoStageASGDStrategy, group_size=1),
}


class _Writing(Net):
    """Sets a buffer as epochs begin, and counts them as they end; the statistics are its own."""

    beta: Tensor
    epochs: Tensor

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.register_buffer("beta", torch.tensor(0.0))
        self.register_buffer("epochs", torch.tensor(0))
        self.trained: list[tuple[int, float, int]] = []
        self.left: list[Tensor] = []
        self.begun: list[Tensor] = []

    def on_train_epoch_start(self) -> None:
        self.beta.fill_(0.5**self.current_epoch)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.begun.append(self.layers[1].running_mean.clone())
        self.trained.append((self.current_epoch, float(self.beta), int(self.epochs)))
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.left.append(self.layers[1].running_mean.clone())

    def on_train_epoch_end(self) -> None:
        self.epochs += 1


def _train(name: str) -> Any:
    model = _Writing()
    fit(STRATEGIES[name](), 3, model, max_epochs=3)
    return model.trained, model.left, model.begun, (float(model.beta), int(model.epochs))


@pytest.mark.parametrize("name", STRATEGIES)
def test_buffers_are_trained_with_as_they_were_written_and_others_come_back(name: str) -> None:
    for trained, left, begun, end in run_ranks(_train, 2, name):
        assert trained == [(epoch, 0.5**epoch, epoch) for epoch in range(3) for _ in range(3)]
        assert end == (0.25, 3)
        for before, after in zip(left[:-1], begun[1:], strict=True):
            assert torch.equal(before, after)


class _Clipping(Net):
    """Writes into parameters in one hook, on some ranks."""

    def __init__(self, hook: str, ranks: tuple[int, ...]) -> None:
        super().__init__()
        if int(os.environ["RANK"]) in ranks:
            setattr(self, hook, self._clip)

    def _clip(self) -> None:
        self.layers[0].weight.data.clamp_(-0.01, 0.01)
        self.layers[2].bias.data.mul_(1.0)


def _clip(name: str, hook: str, ranks: tuple[int, ...]) -> None:
    fit(STRATEGIES[name](), 3, _Clipping(hook, ranks), max_epochs=2)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("hook", ["on_train_start", "on_train_epoch_end"])
def test_written_parameters_are_one_clear_error(name: str, hook: str) -> None:
    for outcome in rank_outcomes(_clip, 2, name, hook, (0, 1)):
        assert str(outcome.error).startswith(
            "RuntimeError: parameters were written to outside of training steps (layers.0.weight):"
        )
        assert "in setup or configure_model" in str(outcome.error)


def test_rank_that_wrote_alone_is_told() -> None:
    alone, other = rank_outcomes(_clip, 2, "psp", "on_train_epoch_end", (0,))
    assert "were written to outside of training steps" in str(alone.error)
    assert "rank 0" in str(other.error)
