"""Adam's moments under block momentum: no negative squares, first betas, and advice."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lightning_hier as lh
from lightning_hier.algorithms.adam_moments import advance_moment_
from lightning_hier.strategies.optimizer_checks import log_advice

BETAS = st.sampled_from([0.5, 0.9, 0.99, 0.999])
TAUS = st.one_of(st.integers(1, 200).map(float), st.floats(0.25, 50.0))
ETAS = st.sampled_from([0.25, 0.5, 0.75, 0.9375, 0.984375])
TINY = st.floats(0.0, 2.0**-100, width=32)
_NET = nn.Linear(1, 1)


@given(
    st.lists(TINY, min_size=4, max_size=4),
    st.lists(TINY, min_size=4, max_size=4),
    BETAS,
    TAUS,
    ETAS,
)
def test_squares_never_become_negative(
    added: list[float], squares: list[float], beta: float, tau: float, eta: float
) -> None:
    """Squares after a block are at least beta^tau of the previous ones, up to rounding."""
    previous = torch.tensor(squares, dtype=torch.float32)
    mean = previous * beta**tau + torch.tensor(added, dtype=torch.float32)
    ahead = eta * tau / (1 - eta)
    advance_moment_(mean, previous, beta=beta, local=tau, ahead=ahead, square=True)
    assert (mean >= 0.0).all() and mean.isfinite().all()


def _adam(*beta1: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        [{"params": [nn.Parameter(torch.zeros(1))], "betas": (beta, 0.999)} for beta in beta1]
    )


def test_large_beta1_with_many_models_gets_the_papers_advice() -> None:
    sync = lh.BMUFAdam(local_beta1="keep")
    message = sync.advice(_adam(0.5, 0.9), 17)
    assert message is not None
    assert "beta1=0.9 with 17 averaged models" in message and "betas=(0.5, 0.999)" in message
    assert sync.advice(_adam(0.5, 0.9), 16) is None
    assert sync.advice(_adam(0.5), 64) is None
    assert lh.BMUFAdam().advice(_adam(0.9), 64) is None


@pytest.mark.parametrize(
    ("setting", "models", "expected"),
    [("auto", 2, 0.5), ("keep", 2, 0.9), (0.7, 2, 0.7), (0.95, 2, 0.9), ("auto", 1, 0.9)],
)
def test_local_beta1_is_set_only_inside_the_step(
    setting: Any, models: int, expected: float
) -> None:
    optimizer, config = _adam(0.9, 0.3), lh.BMUFAdam(local_beta1=setting)
    with config.stepping(optimizer, models)():
        assert [group["betas"] for group in optimizer.param_groups] == [
            (expected, 0.999),
            (0.3, 0.999),
        ]
    assert [group["betas"][0] for group in optimizer.param_groups] == [0.9, 0.3]


def test_averaging_and_compression_warn_of_adam() -> None:
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for advice in (lh.GTC(of="gradient").advice, lambda own: lh.ModelAveraging().advice(own, 2)):
        message = advice(_adam(0.9))
        assert message is not None and "with Adam" in message and "BMUFAdam(...)" in message
        assert advice(plain) is None
    assert lh.AllReduce().advice(_adam(0.9)) is None


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RAdam"])
def test_advice_for_bmuf_with_adam_is_bmuf_adam(kind: str) -> None:
    optimizer = getattr(torch.optim, kind)([nn.Parameter(torch.zeros(1))])
    message = lh.BMUF().advice(optimizer, 2)
    assert message is not None and kind in message and "BMUFAdam(...)" in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_advice(_NET, [optimizer], None, lh.BMUF(), 1)  # a single model is not averaged
    assert lh.BMUF().advice(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 64) is None


def test_sparse_updates_with_outer_momentum_are_advised_against() -> None:
    optimizer = _adam(0.9)
    message = lh.DiLoCo(across_density=0.02).advice(optimizer, 4)
    assert message is not None and "pass outer_momentum=0 and outer_lr=1" in message
    assert lh.DiLoCo(across_density=0.02, outer_momentum=0.0).advice(optimizer, 4) is None
    assert lh.DiLoCo().advice(optimizer, 4) is None


def test_single_group_of_several_ranks_gets_a_warning() -> None:
    """Every step would exchange gradients between all ranks, as under DDP."""
    for gradient_sync, number in ((lh.AllReduce(), 1), (None, 1), (lh.AllReduce(), 2)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            log_advice(_NET, [_adam(0.9)], gradient_sync, lh.DiLoCo(), number)
        messages = [str(own.message) for own in caught if "one group" in str(own.message)]
        assert len(messages) == (gradient_sync is not None and number == 1)


@pytest.mark.parametrize(
    ("sync", "warns"),
    [
        (lh.DiLoCo(), True),
        (lh.DiLoCo(outer_momentum="auto"), True),
        (lh.DiLoCo(outer_lr=1.0, outer_momentum=0.0), False),
        (lh.BMUF(), False),
    ],
)
def test_statistics_of_other_weights_are_warned_of(sync: lh.BlockSync, warns: bool) -> None:
    """An outer momentum moves the weights away from BatchNorm's running statistics."""
    for layer, expected in ((nn.BatchNorm1d(2), warns), (nn.GroupNorm(1, 2), False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            log_advice(nn.Sequential(layer), [], None, sync, 4)
        assert ["update_bn" in str(own.message) for own in caught] == [True] * expected
