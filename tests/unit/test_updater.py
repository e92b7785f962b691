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
def test_servers_together_are_the_optimizer(name: str) -> None:
    """Equal to the last bit: values, the union of states, and what continues from that elsewhere.

    Bfloat16 cannot represent NAdam's product.
    """
    for dtype in (torch.float64, torch.bfloat16):
        own = parameters(dtype=dtype)
        optimizer = OPTIMIZERS[name](groups(own))
        updaters, tensors = servers(optimizer, own, [[0, 4], [1], [], [2, 3]])
        for step in range(3):
            plain_step(optimizer, own, gradients(step, dtype))
            serve(updaters, step, dtype)
        assert same_values(tensors, own)
        saved = {index: state for updater in updaters for index, state in updater.state().items()}
        assert same_state(saved, optimizer.state_dict()["state"])
        if name == "own":
            continue  # it has a count in its groups, which is not state of parameters
        copy = deepcopy(saved)
        updaters, tensors = servers(OPTIMIZERS[name](groups(own)), own, [[0, 1, 2], [3, 4]])
        for updater in updaters:
            updater.load(saved)
        for step in range(3, 6):
            plain_step(optimizer, own, gradients(step, dtype))
            serve(updaters, step, dtype)
        assert same_values(tensors, own)
        assert same_state(saved, copy)  # load copies it


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
