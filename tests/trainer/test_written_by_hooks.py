"""What the user's hooks write into the module while it shows the global model stays written."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    def __init__(self, write: Callable[[Tensor, int], Any]) -> None:
        super().__init__()
        self.write = write

    def on_train_epoch_end(self) -> None:
        self.write(self.layers[0].weight.data, int(os.environ["RANK"]))


def _train_apart(write: Callable[[Tensor, int], Any]) -> None:
    fit(lh.BMUFStrategy(block_size=4), batches=6, model=_WritingApart(write), max_epochs=2)


def _add_rank(weight: Tensor, rank: int) -> None:
    weight.add_(float(rank))


def _zero_on_rank_1(weight: Tensor, rank: int) -> None:
    weight.mul_(1 - rank)


@pytest.mark.parametrize("write", [_add_rank, _zero_on_rank_1])
def test_what_only_some_ranks_write_is_one_clear_error(write: Callable[[Tensor, int], Any]) -> None:
    for error in run_ranks(_train_apart, 2, write, expect_failure=True):
        assert error.startswith("OutOfStepError: while the global model was shown, a hook has")
        assert "on rank 1 than on rank 0" in error


class _Pruning(Net):
    """Writes zeros as the first epoch ends, and keeps their gradients at zero from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.pruned: list[float] = []
        self.layers[0].weight.register_hook(self._masked)

    def _masked(self, gradient: Tensor) -> Tensor:
        kept = torch.ones_like(gradient)
        kept[:, :2] = float(self.current_epoch == 0)
        return gradient * kept

    def on_train_epoch_end(self) -> None:
        weight: Tensor = self.layers[0].weight.detach()
        if self.current_epoch == 0:
            weight[:, :2] = 0.0
        self.pruned.append(float(weight[:, :2].abs().max()))


def _prune(across_dtype: Any) -> list[float]:
    model = _Pruning()
    strategy = lh.ModelAveragingStrategy(block_size=2, across_dtype=across_dtype)
    fit(strategy, batches=6, model=model, max_epochs=3)
    return model.pruned


@pytest.mark.parametrize("across_dtype", ["int8", "bfloat16"])
def test_zeros_stay_zeros_where_rounding_has_left_something_over(across_dtype: str) -> None:
    assert run_ranks(_prune, 2, across_dtype) == [[0.0, 0.0, 0.0]] * 2
