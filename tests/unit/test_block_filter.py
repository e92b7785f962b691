"""The block filter has the identities and gains of the papers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.algorithms.block_momentum import BlockFilter, UpdateFrom, auto_block_momentum

etas = st.floats(0.0, 0.99)
seeds = st.integers(0, 1000)


def _means(seed: int, blocks: int, numel: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(blocks, numel, dtype=torch.float64, generator=generator)


@given(eta=etas, seed=seeds)
def test_with_nesterov_and_zeta_one_the_global_model_is_exactly_the_mean(
    eta: float, seed: int
) -> None:
    block_filter = BlockFilter(eta=eta)
    model, update = torch.zeros(2, 7, dtype=torch.float64)
    for mean in _means(seed, 5):
        expected = mean.clone()
        block_filter.advance_(mean, model, update)
        assert torch.equal(model, expected)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(
    ("update_from", "gain"), [("global", 1 / (1 - 0.875)), ("start", (1 + 0.875) / (1 - 0.875))]
)
def test_one_block_contributes_the_gain_of_the_paper(
    nesterov: bool, update_from: UpdateFrom, gain: float
) -> None:
    """For N = 8, the gain is 8 from W(t-1), and 15 from the look-ahead that only Nesterov has."""
    if not nesterov:
        gain = 1 / (1 - 0.875)
    block_filter = BlockFilter(eta=0.875, nesterov=nesterov, update_from=update_from)
    model, update = torch.zeros(2, 1, dtype=torch.float64)
    start = torch.zeros(1, dtype=torch.float64)
    for block in range(400):
        start = start + (1.0 if block == 0 else 0.0)
        block_filter.advance_(start, model, update)
    assert model.item() == pytest.approx(gain)


def test_long_models_are_filtered_like_short_ones() -> None:
    """Results do not depend on chunk boundaries."""
    generator = torch.Generator().manual_seed(1)
    mean, model, update = torch.randn(3, 3 * (1 << 17) + 11, generator=generator)
    block_filter = BlockFilter(eta=0.75, zeta=0.5)
    indices = [0, (1 << 17) - 1, 1 << 17, 2 << 17, mean.numel() - 1]
    few = [tensor[indices].clone() for tensor in (mean, model, update)]
    block_filter.advance_(*few)
    before = float(mean.double().square().sum())
    squares = block_filter.advance_(mean, model, update)
    for whole, part in zip((mean, model, update), few, strict=True):
        assert torch.equal(whole[indices], part)
    assert squares == pytest.approx((before, float(update.double().square().sum())))


def test_eta_of_the_number_of_models() -> None:
    assert [auto_block_momentum(n) for n in (1, 2, 8, 16, 64)] == [
        0,
        0.5,
        0.875,
        0.9375,
        1 - 1 / 64,
    ]
    assert auto_block_momentum(8, c=1.25) == pytest.approx(0.9)
    assert auto_block_momentum(4, block_lr=2.0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="block_lr=5.*4 models.*lower block_lr to at most 4"):
        auto_block_momentum(4, block_lr=5.0)
