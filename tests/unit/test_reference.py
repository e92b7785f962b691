"""The reference itself: its example trains, and it has the identities of the papers."""

from __future__ import annotations

import inspect
import re
import textwrap
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier import reference
from lightning_hier.reference import BlockMomentum, DiLoCo, Method, Node, Training, Worker
from tests.conftest import REPOSITORY

FOLDER = Path(inspect.getfile(reference)).parent


def _data(steps: int) -> list[list[tuple[Tensor, Tensor]]]:
    """A batch for each of eight workers, for so many steps."""
    values = torch.randn(steps, 8, 4, 6, dtype=torch.float64, generator=_generator())
    return [[(own[:, :5], own[:, 5:]) for own in step] for step in values]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _train(method: Method, steps: int) -> Training:
    torch.manual_seed(0)
    model = nn.Linear(5, 1).double()
    models = [deepcopy(model) for _ in range(8)]
    workers = [Worker(own, [torch.optim.SGD(own.parameters(), lr=0.1)]) for own in models]
    training = Training(workers, method)
    for batches in _data(steps):
        for worker, (x, y) in zip(workers, batches, strict=True):
            nn.functional.mse_loss(worker.model(x), y).backward()
        training.step()
    return training


def test_example_of_its_docstring_trains() -> None:
    assert reference.__doc__ is not None
    code = textwrap.dedent(reference.__doc__.partition("::\n")[2])
    torch.manual_seed(0)
    names: dict[str, Any] = {**vars(reference), "torch": torch, "deepcopy": deepcopy}
    names |= {"partial": partial, "model": nn.Linear(5, 1).double(), "data": _data(23)}
    exec(code, names)
    method = Method(group=2, threshold=0.01, tau=10, outer=partial(BlockMomentum, eta=0.75))
    for name, value in _train(method, 23).global_model().items():
        assert torch.equal(names["W"][name], value)


def test_it_is_short() -> None:
    lines = {path.name: path.read_text().count("\n") for path in FOLDER.glob("*.py")}
    assert sum(lines.values()) <= 550, lines


def test_code_that_the_page_of_algorithms_names_is_there() -> None:
    page = (REPOSITORY / "docs/algorithms.md").read_text()
    named = re.findall(r"^Reference: (.*) in `lightning_hier/reference/(\w+)\.py`", page, re.M)
    assert len(named) >= 12
    for text, module in named:
        for name in re.findall(r"`([\w.]+)`", text):
            owner, _, attribute = name.partition(".")
            own = getattr(reference, module, None)
            assert name == "codec" or hasattr(own, owner), name
            assert not attribute or hasattr(getattr(own, owner), attribute), name


def test_global_model_of_nesterov_is_the_mean_of_the_models() -> None:
    """With zeta = 1 (bmuf_adam eq. 8), while the workers' start model is ahead of it."""
    training = _train(Method(tau=5, outer=BlockMomentum), 9)
    mean = torch.stack([next(own.model.parameters()) for own in training.workers]).mean(0)
    torch.testing.assert_close(training.global_model()["weight"], mean)


@pytest.mark.parametrize("delay", [0, 3])
def test_start_models_of_diloco_are_those_of_block_momentum(delay: int) -> None:
    sgd = partial(torch.optim.SGD, lr=0.7, momentum=0.6, nesterov=True)
    outers = partial(BlockMomentum, eta=0.6, zeta=0.7), partial(DiLoCo, optimizer=sgd)
    one, other = (_train(Method(tau=4, delay=delay, outer=own), 12) for own in outers)
    for a, b in zip(one.workers, other.workers, strict=True):
        torch.testing.assert_close(list(a.model.parameters()), list(b.model.parameters()))


def test_gtc_sends_or_keeps_every_gradient() -> None:
    """With SGD, the model has moved by the sent values; the residuals are what is missing."""
    training = _train(Method(group=8, threshold=0.05), 1)
    exact = _train(Method(group=8), 1)
    for name in ("weight", "bias"):
        own = [getattr(worker.model, name) for worker in training.workers]
        pairs = zip(training.workers, own, strict=True)
        residual = torch.stack([worker.residuals[p] for worker, p in pairs]).mean(0)
        expected = getattr(exact.workers[0].model, name)
        torch.testing.assert_close(own[0] - 0.1 * residual, expected)


def test_push_of_one_gradient_is_a_step_of_sgd_at_the_master() -> None:
    W, w = [nn.Parameter(torch.ones(3))], [nn.Parameter(torch.ones(3))]
    node = Node(w, [torch.optim.SGD(w, lr=0.1)] * 2)
    for device in (0, 1):
        node.step([torch.ones(3) * (device + 1)], device)
    node.push(W, torch.optim.SGD(W, lr=0.1))
    assert torch.allclose(w[0], torch.full((3,), 0.7)) and node.n == 0
    assert torch.allclose(W[0], torch.full((3,), 1 - 0.1 * 1.5))
    node.pull(W)
    assert torch.equal(w[0], W[0])
