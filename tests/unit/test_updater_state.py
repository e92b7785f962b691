"""State of Updaters: it is that of one optimizer, and can be loaded."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import optim

from tests.unit.optimizer_cases import (
    OPTIMIZERS,
    gradients,
    groups,
    parameters,
    plain_step,
    same_state,
    same_values,
    serve,
    servers,
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_all_servers_are_the_state_of_one_optimizer(name: str) -> None:
    own = parameters()
    optimizer, other = (OPTIMIZERS[name](groups(own)) for _ in range(2))
    cuts = [[0, 4], [1], [], [2, 3]]
    updaters, _ = servers(optimizer, own, cuts)
    for step in range(3):
        serve(updaters, step)
        plain_step(other, own, gradients(step))
    union = {index: state for updater in updaters for index, state in updater.state().items()}
    expected = other.state_dict()["state"]
    assert same_state(union, expected)
    # A plain optimizer can load it, and returns it unchanged.
    optimizer.load_state_dict({**optimizer.state_dict(), "state": union})
    other.load_state_dict(deepcopy(other.state_dict()))
    assert same_state(optimizer.state_dict()["state"], other.state_dict()["state"])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_servers_continue_from_the_state_of_one_optimizer(name: str, dtype: torch.dtype) -> None:
    """Values are equal to the last bit. Bfloat16 cannot represent NAdam's product."""
    if name == "own":
        pytest.skip("has a count in its groups, which is not state of parameters")
    own = parameters(dtype=dtype)
    fresh = OPTIMIZERS[name](groups(own))
    optimizer = OPTIMIZERS[name](groups(own))
    for step in range(3):
        plain_step(optimizer, own, gradients(step, dtype))
    saved = optimizer.state_dict()["state"]
    copy = deepcopy(saved)
    updaters, tensors = servers(fresh, own, [[0, 1, 2], [3, 4]])
    for updater in updaters:
        updater.load(saved)
    for step in range(3, 6):
        serve(updaters, step, dtype)
    assert same_state(saved, copy)  # load copies it
    for step in range(3, 6):
        plain_step(optimizer, own, gradients(step, dtype))
    assert same_values(tensors, own)


def test_states_are_copies() -> None:
    own = parameters()
    (updater,), _ = servers(optim.Adam(own), own, [range(5)])
    updater.step(gradients(0))
    first = updater.state()
    copy = deepcopy(first)
    updater.step(gradients(1))
    assert same_state(first, copy)
    assert not same_state(first, updater.state())
