"""Updaters of several servers together do the steps of the user's optimizer, and have its state."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.updater import Updater, objection
from tests.unit.optimizer_cases import (
    OPTIMIZERS,
    Make,
    NeedsClosure,
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
@pytest.mark.parametrize("cuts", [[[0, 1, 2, 3, 4]], [[0, 4], [1], [2, 3]]])
def test_servers_together_do_the_steps_of_the_optimizer(name: str, cuts: list[list[int]]) -> None:
    own = parameters()
    optimizer = OPTIMIZERS[name](groups(own))
    updaters, tensors = servers(optimizer, own, cuts)
    for step in range(6):
        plain_step(optimizer, own, gradients(step))
        serve(updaters, step)
    assert same_values(tensors, own)


def test_parameter_without_gradient_does_not_change() -> None:
    own = parameters()
    optimizer = optim.SGD(own, lr=0.1, weight_decay=0.5)
    (updater,), tensors = servers(optimizer, own, [range(5)])
    some = gradients(0)
    updater.step([some[0], None, *some[2:]])
    assert torch.equal(tensors[1], own[1])
    assert not torch.equal(tensors[0], own[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: optim.LBFGS(p), "calls its closure"),
        (lambda p: optim.SparseAdam(p), "sparse"),
        (lambda p: NeedsClosure(p), "needs a closure"),
        (lambda p: optim.Adam(p, capturable=True), "capturable=True"),
        (lambda p: optim.SGD(p, lr=0.1, differentiable=True), "differentiable=True"),
        (lambda p: Optimizer(p, {}), "no learning rate"),
    ],
)
def test_objections(make: Make, words: str) -> None:
    message = objection(make(parameters()))
    assert message is not None and words in message


def test_memory_layouts_may_differ() -> None:
    own = [Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))]
    gradient = torch.randn(2, 3, 4, 5)
    tensor = own[0].detach().clone(memory_format=torch.contiguous_format)
    updater = Updater(optim.SGD(own, lr=1.0), {own[0]: tensor})
    updater.step([gradient.flatten()])
    assert torch.equal(tensor, own[0].detach() - gradient)


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
