"""The master of two-stage ASGD, message by message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from lightning_hier.parameter_server.message import NO_PAYLOAD, Kind, Message
from tests.unit.two_stage_talk import ETA, LIMIT_S, Talk, ones, parameter


def test_without_hierarchical_rate_gamma_is_eta() -> None:
    talk = Talk((0,), hierarchical_lr=False)
    [(_, answer)] = talk.push(0, ones(3.0), 4)
    torch.testing.assert_close(answer.payload, -ETA * ones(3.0), rtol=1e-12, atol=0.0)


def test_staleness_counts_the_versions_since_the_pull() -> None:
    talk = Talk(order_locking=False)
    talk.push(2, ones(1.0), 1, version=0)
    [(_, answer)] = talk.push(0, ones(1.0), 1, version=0)
    assert answer.facts["staleness"] == 1
    talk.push(2, ones(1.0), 1, version=1)
    assert (talk.counts.staleness_sum, talk.counts.staleness_max) == (2, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_sum_that_is_not_finite_stays_out(bad: float) -> None:
    talk = Talk((0,))
    [(_, answer)] = talk.push(0, torch.tensor([0.0, bad, 0.0], dtype=torch.float64), 2)
    assert answer.payload.tolist() == [0.0] * 3
    assert (talk.counts.version, talk.counts.nonfinite) == (0, 1)


@pytest.mark.parametrize(
    ("total", "facts"),
    [
        (torch.zeros(2, dtype=torch.float64), {}),
        (torch.zeros(3), {}),
        (NO_PAYLOAD, {}),
        (torch.zeros(3, dtype=torch.float64), {"count": 0}),
    ],
)
def test_push_that_cannot_be_meant_is_dropped(total: Tensor, facts: dict[str, Any]) -> None:
    talk = Talk((0,))
    assert talk.push(0, total, **{"count": 1} | facts) == []
    assert (talk.counts.version, talk.counts.malformed) == (0, 1)


def test_ranks_that_are_no_nodes_are_ignored() -> None:
    talk = Talk((0, 2))
    talk._numbers[1] = 0
    assert talk.push(1, ones(1.0), 1) == []
    talk.master.peer_gone(1, 0.0)
    assert talk.counts.version == 0


def test_answer_that_is_still_queued_is_not_sent_again() -> None:
    talk = Talk()
    talk.push(0, ones(1.0), 1)
    told = talk.facts(1)
    talk.replies.sending = {b"0"}
    assert talk.say(0, Message(Kind.PUSH, 0, 0, told, ones(1.0))) == []
    talk.replies.sending = set()
    [(to, again)] = talk.say(0, Message(Kind.PUSH, 0, 0, told, ones(1.0)))
    assert (to, again.kind, again.facts["number"]) == (0, Kind.BLOCK, 1)
    assert talk.counts.pushes == 1


@pytest.mark.parametrize(("rank", "number"), [(1, 1), (0, 2), (0, 0), (0, -1)])
def test_arrival_that_cannot_be_meant_is_ignored(rank: int, number: int) -> None:
    talk = Talk()
    assert talk.arrive(rank, number) == []
    assert talk.arrive(0) == [] and len(talk.arrive(2)) == 2


def test_node_at_the_epochs_end_is_told_who_is_missing() -> None:
    talk = Talk((0, 2, 4))
    talk.arrive(4, now=5.0)
    talk.master.tick(5.0 + LIMIT_S)
    [(to, told)] = talk.sent
    assert to == 4 and told.facts == {"missing": [0, 2], "waiting": "at the end of an epoch"}


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
    assert (talk.counts.version, talk.counts.nonfinite, talk.counts.pushes) == (0, 1, 0)
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
