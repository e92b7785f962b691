"""Updates of the master of two-stage ASGD: what is undone, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from tests.unit.two_stage_talk import ETA, Talk, ones, parameter


@pytest.mark.parametrize(
    ("kind", "spoilt"),
    [
        (Adam, {"eps": 0.0}),  # 0 / 0 where a gradient has always been zero
        (SGD, {"lr": 1e300}),  # finite gradient, finite rate, and a product that is not
        (SGD, {"lr": float("nan")}),  # as a schedule may give
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_update_of_which_nan_or_inf_comes_is_undone(
    kind: type[SGD | Adam], spoilt: dict[str, float], together: bool
) -> None:
    talk = Talk((0,), optimizer=kind([parameter()], lr=ETA))
    group = talk.optimizer.param_groups[0]
    sound = {name: group[name] for name in spoilt}
    group.update(spoilt)
    total = torch.tensor([0.0, 1e30, 1.0], dtype=torch.float64)
    [(_, answer)] = talk.push(0, total, 1, together=together)
    assert answer.payload.tolist() == [0.0] * 3
    assert (talk.model.version, talk.counts.nonfinite, talk.counts.pushes) == (0, 1, 0)
    assert not talk.model.snapshot()[1]  # nothing of it is left in the optimizer's state either
    group.update(sound)
    [(_, answer)] = talk.push(0, ones(1.0), 1)
    torch.testing.assert_close(answer.payload, -ETA * ones(1.0), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("together", [False, True])
def test_parameter_without_a_gradient_is_not_moved(together: bool) -> None:
    """Neither by weight decay nor by the momentum that it has from before."""
    pair = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    talk = Talk((0, 2), optimizer=SGD(pair, lr=0.5, momentum=0.9, weight_decay=0.1))

    def pushed(*absent: list[int]) -> torch.Tensor:
        for node, own in zip((0, 2), absent, strict=True):
            total = torch.ones(4)
            total[2:] = float(own != [1])
            talk.push(node, total, 1, together=together, absent=own)
        return talk.model.flat()

    before = pushed([], [])
    after = pushed([1], [1])
    assert torch.equal(after[2:], before[2:]) and bool((after[:2] < before[:2]).all())
    # In a step that nodes make together it is enough that one of them has a gradient.
    assert bool((pushed([1], [])[2:] < after[2:]).all())
