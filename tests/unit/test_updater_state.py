"""State of Updaters: it is that of one optimizer, can be loaded, and is not shared by siblings."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import optim

from lightning_hier.parameter_server.updater import Updater
from lightning_hier.parameter_server.user_optimizer import hyperparameters
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sibling_starts_without_state_at_the_current_rates(name: str) -> None:
    own = parameters()
    optimizer = OPTIMIZERS[name](groups(own))
    updater = Updater(optimizer, {own[0]: own[0].detach().clone()})
    sent = hyperparameters(optimizer)
    sent[1]["lr"] = 0.25
    updater.step([gradients(0)[0]], hyperparameters=sent)
    tensors = {index: own[index].detach().clone() for index in (2, 3)}
    sibling = updater.sibling(tensors)
    sibling.step([gradients(0)[2], gradients(0)[3]])
    optimizer.param_groups[1]["lr"] = 0.25
    if name == "own":
        optimizer.param_groups[0]["seen"] = optimizer.param_groups[2]["seen"] = 1
        optimizer.param_groups[1]["seen"] = 1
    for index in (2, 3):
        own[index].grad = gradients(0)[index]
    optimizer.step()
    assert torch.equal(tensors[2], own[2])
    assert torch.equal(tensors[3], own[3])


def test_sibling_starts_with_the_initial_state_of_the_optimizer() -> None:
    """A state that the optimizer loads later has no effect."""
    own = parameters()
    optimizer = optim.Adagrad(own, lr=0.1, initial_accumulator_value=0.5)
    updater = Updater(optimizer, {})
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    sibling = updater.sibling({1: own[1].detach().clone()})
    assert torch.equal(sibling.state()[1]["sum"], torch.full((5,), 0.5, dtype=torch.float64))


def test_states_are_copies() -> None:
    own = parameters()
    (updater,), _ = servers(optim.Adam(own), own, [range(5)])
    updater.step(gradients(0))
    first = updater.state()
    copy = deepcopy(first)
    updater.step(gradients(1))
    assert same_state(first, copy)
    assert not same_state(first, updater.state())
