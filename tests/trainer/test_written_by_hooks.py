"""What the user's hooks write into the module while it shows the global model stays written."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit

BOUND = 0.2
CLASSICAL = {"block_size": 4, "block_momentum": 0.5, "nesterov": False}
STRATEGIES = {
    "averaging": partial(lh.ModelAveragingStrategy, block_size=4),
    "classical": partial(lh.BMUFStrategy, **CLASSICAL),
    "nesterov": partial(lh.BMUFStrategy, block_size=4, block_momentum=0.5, block_lr=0.7),
    "overlap": partial(lh.BMUFStrategy, **CLASSICAL, overlap=True),
    "one model": partial(lh.GTCStrategy, density=0.2, dense_below=10),
}


class _Writing(Net):
    """Sets a buffer as epochs begin; counts epochs and clips weights as they end."""

    beta: Tensor
    epochs: Tensor

    def __init__(self) -> None:
        super().__init__(lr=0.2)
        self.register_buffer("beta", torch.tensor(0.0))
        self.register_buffer("epochs", torch.tensor(0))
        self.trained: list[tuple[int, float, int]] = []
        self.left: list[Tensor] = []
        self.begun: list[Tensor] = []

    @property
    def clipped(self) -> nn.Parameter:
        weight = self.layers[0].weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def on_train_epoch_start(self) -> None:
        self.beta.fill_(0.5**self.current_epoch)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.begun.append(self.clipped.detach().clone())
        self.trained.append((self.current_epoch, float(self.beta), int(self.epochs)))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1
        self.clipped.data.clamp_(-BOUND, BOUND)
        self.left.append(self.clipped.detach().clone())


def _train(names: list[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in names:
        model = _Writing()
        fit(STRATEGIES[name](), batches=6, model=model, max_epochs=3)
        found[name] = {
            "trained": model.trained,
            "left": model.left,
            "begun": model.begun,
            "end": model.clipped.detach().clone(),
            "buffers": (float(model.beta), int(model.epochs)),
        }
    return found


@pytest.fixture(scope="module")
def runs() -> list[dict[str, dict[str, Any]]]:
    return run_ranks(_train, 2, list(STRATEGIES))


@pytest.mark.parametrize("name", STRATEGIES)
def test_buffers_are_trained_with_as_they_were_written(
    name: str, runs: list[dict[str, dict[str, Any]]]
) -> None:
    for own in runs:
        assert len(own[name]["trained"]) == 18
        for epoch, beta, epochs in own[name]["trained"]:
            assert (beta, epochs) == (0.5**epoch, epoch)
        assert own[name]["buffers"] == (0.25, 3)


@pytest.mark.parametrize("name", STRATEGIES)
def test_weights_are_trained_and_left_as_they_were_written(
    name: str, runs: list[dict[str, dict[str, Any]]]
) -> None:
    """As under DDP; at the end up to the rounding of a mean."""
    for own in runs:
        left, begun = own[name]["left"], own[name]["begun"]
        assert all(float(weight.abs().max()) == pytest.approx(BOUND) for weight in left)
        assert all(torch.equal(*pair) for pair in zip(left[:-1], begun[1:], strict=True))
        assert all(torch.equal(*pair) for pair in zip(left, runs[0][name]["left"], strict=True))
        torch.testing.assert_close(own[name]["end"], left[-1], rtol=1e-6, atol=0.0)
        assert torch.equal(own[name]["end"], runs[0][name]["end"])


class _WritingApart(Net):
    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.layers[0].weight.add_(float(os.environ["RANK"]))


def _train_apart() -> None:
    fit(lh.BMUFStrategy(block_size=4), batches=6, model=_WritingApart(), max_epochs=2)


def test_what_only_some_ranks_write_is_one_clear_error() -> None:
    for error in run_ranks(_train_apart, 2, expect_failure=True):
        assert error.startswith("OutOfStepError: while the global model was shown, a hook has")
        assert "on rank 1 than on rank 0" in error
