"""What one block contributes in all, and what is exact about block momentum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_hier.algorithms.block_momentum import BlockFilter, UpdateFrom, auto_block_momentum
from tests.equivalence.twins import Block, Recipe

BLOCKS = 400


def _contributions(block_filter: BlockFilter, steps: int = BLOCKS) -> Tensor:
    """W after each block if the first one moves the models by 1 and the others leave them."""
    global_model = torch.zeros(1, dtype=torch.float64)
    update = torch.zeros_like(global_model)
    start = torch.zeros_like(global_model)
    seen = []
    for number in range(steps):
        moved = 1.0 if number == 0 else 0.0
        mean = start + moved
        block_filter.advance_(mean, global_model, update)
        start = mean.clone()
        seen.append(global_model.clone())
    return torch.cat(seen)


def _growth_per_block(block_filter: BlockFilter) -> float:
    """How far W moves in a block, in the long run, if local training always moves it by G = 1."""
    global_model = torch.zeros(1, dtype=torch.float64)
    update = torch.zeros_like(global_model)
    start = torch.zeros_like(global_model)
    before = 0.0
    for _ in range(BLOCKS):
        before = global_model.item()
        mean = start + 1.0
        block_filter.advance_(mean, global_model, update)
        start = mean.clone()
    return global_model.item() - before


def _twin_growth(recipe: Recipe) -> float:
    zero = {"w": torch.zeros((), dtype=torch.float64)}
    block = Block(dict(zero), dict(zero), dict(zero))
    before = 0.0
    for _ in range(BLOCKS):
        before = block.w["w"].item()
        block = block.advanced({"w": block.start["w"] + 1.0}, recipe)
    return block.w["w"].item() - before


GAINS = pytest.mark.parametrize(
    ("nesterov", "update_from", "gain"),
    [
        (False, "global", lambda eta: 1 / (1 - eta)),
        (True, "global", lambda eta: 1 / (1 - eta)),
        (False, "start", lambda eta: 1 / (1 - eta)),
        (True, "start", lambda eta: (1 + eta) / (1 - eta)),
    ],
    ids=["CBM", "NBM", "CBM from the start model", "NBM from the start model"],
)
ETAS = pytest.mark.parametrize("eta", [0.5, 0.875, 0.94])


@GAINS
@ETAS
def test_gain_of_a_constant_update(
    eta: float, nesterov: bool, update_from: UpdateFrom, gain: object
) -> None:
    assert callable(gain)
    block_filter = BlockFilter(eta=eta, zeta=0.7, nesterov=nesterov, update_from=update_from)
    recipe = Recipe(eta=eta, zeta=0.7, look_ahead=nesterov, update_from=update_from)
    assert _growth_per_block(block_filter) == pytest.approx(0.7 * gain(eta), rel=1e-9)
    assert _twin_growth(recipe) == pytest.approx(0.7 * gain(eta), rel=1e-9)


@GAINS
@ETAS
def test_contributions_of_one_block_add_up_to_the_gain(
    eta: float, nesterov: bool, update_from: UpdateFrom, gain: object
) -> None:
    """The block's update arrives over many blocks; W ends where the sum of its parts is."""
    assert callable(gain)
    block_filter = BlockFilter(eta=eta, nesterov=nesterov, update_from=update_from)
    reached = _contributions(block_filter)
    assert reached[0].item() == pytest.approx(1.0)
    assert reached[-1].item() == pytest.approx(gain(eta), rel=1e-9)


@pytest.mark.parametrize("models", [2, 8, 16, 32, 64])
def test_automatic_momentum_makes_up_for_averaging(models: int) -> None:
    """Zeta / (N (1 - eta)) = C: a mini-batch counts as in plain SGD."""
    block_filter = BlockFilter(eta=auto_block_momentum(models))
    assert _growth_per_block(block_filter) == pytest.approx(models, rel=1e-2)


def test_literal_reading_gives_fifteen_instead_of_eight() -> None:
    eta = auto_block_momentum(8)
    start = BlockFilter(eta=eta, update_from="start")
    assert _growth_per_block(BlockFilter(eta=eta)) == pytest.approx(8.0, rel=1e-9)
    assert _growth_per_block(start) == pytest.approx(15.0, rel=1e-9)


@pytest.mark.parametrize("eta", [0.0, 0.6, 0.9])
def test_global_model_is_the_mean_under_nesterov_and_zeta_one(eta: float) -> None:
    """bmuf_adam eq. 8, to the last bit, in every block."""
    generator = torch.Generator().manual_seed(1)
    global_model = torch.randn(500, dtype=torch.float64, generator=generator)
    update = torch.zeros_like(global_model)
    start = global_model.clone()
    for _ in range(20):
        mean = start + 0.1 * torch.randn(500, dtype=torch.float64, generator=generator)
        start = mean.clone()
        BlockFilter(eta=eta).advance_(start, global_model, update)
        assert torch.equal(global_model, mean)
        assert eta == 0.0 or not torch.equal(start, mean)
