"""Block momentum as an optimizer: the reference's models, and the identities of the papers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier import BlockMomentum, reference
from lightning_hier.algorithms.block_momentum import UpdateFrom, auto_block_momentum


def _values(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("eta", "zeta", "nesterov", "update_from"),
    [
        (0.0, 0.3, True, "global"),
        (0.75, 0.3, True, "global"),
        (0.75, 0.3, True, "start"),
        (0.75, 1.0, False, "start"),
    ],
)
def test_models_are_those_of_the_reference(
    eta: float, zeta: float, nesterov: bool, update_from: UpdateFrom
) -> None:
    """In a loop of its own, on parameters of any layout, and resumed from its state in between."""
    make = partial(BlockMomentum, block_momentum=eta, block_lr=zeta, nesterov=nesterov)
    params = [Parameter(_values(5, 3).t()), Parameter(_values(4)), Parameter(_values(2))]
    outer = make(params[:2], update_from=update_from)
    outer.add_param_group({"params": params[2:], "block_momentum": 0.5})
    etas = (eta, eta, 0.5)
    twins = [
        reference.BlockMomentum(
            p.detach().clone(), own, zeta, nesterov=nesterov, literal=update_from == "start"
        )
        for p, own in zip(params, etas, strict=True)
    ]
    for block in range(5):
        starts = outer.start_models()
        for p, start, twin in zip(params, starts, twins, strict=True):
            torch.testing.assert_close(p.detach(), twin.W, rtol=1e-13, atol=1e-13)
            torch.testing.assert_close(start, twin.W_g, rtol=1e-13, atol=1e-13)
            workers = start + _values(3, *p.shape, seed=block)
            p.grad = start - workers.mean(0)
            twin.step(-p.grad, 3)
        outer.step()
        if block == 2:
            state = outer.state_dict()
            outer = make(params[:2], update_from=update_from)
            outer.add_param_group({"params": params[2:]})
            outer.load_state_dict(state)
    assert [bool(outer.state[p]) for p in params] == [own != 0.0 for own in etas]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_momentum": 1.0}, r"block_momentum must lie in \[0, 1\), got 1.0"),
        ({"block_lr": 0.0}, "block_lr must be"),
        ({"update_from": "W"}, "update_from must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockMomentum([Parameter(torch.ones(1))], **settings)


@pytest.mark.parametrize("nesterov", [True, False])
def test_with_the_look_ahead_inside_it_is_sgd(nesterov: bool) -> None:
    params = [Parameter(_values(7)) for _ in range(2)]
    ours = BlockMomentum(params[:1], 0.8, 0.6, nesterov=nesterov, includes_ahead=True)
    sgd = torch.optim.SGD(params[1:], lr=0.6, momentum=0.8, nesterov=nesterov)
    for block in range(4):
        for p, outer in zip(params, (ours, sgd), strict=True):
            p.grad = _values(7, seed=block)
            outer.step()
    torch.testing.assert_close(*params, rtol=1e-13, atol=1e-13)
    assert torch.equal(ours.start_models()[0], params[0])


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
    model = Parameter(torch.zeros(1, dtype=torch.float64))
    outer = BlockMomentum([model], 0.875, nesterov=nesterov, update_from=update_from)
    for block in range(400):
        model.grad = torch.full((1,), -1.0 if block == 0 else 0.0, dtype=torch.float64)
        outer.step()
    assert model.item() == pytest.approx(gain)


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
