"""PSP-SGD on a simulated network equals synchronous SGD, Adam, or the reference's servers.

The tolerance of 1e-10 only allows for sums of float64 in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, optim
from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.parameter_server.settings import PSPSettings
from lightning_hier.reference import Server
from tests.unit.psp_network import Cluster, Weather

STEPS = 12
WORKERS = 4
Make = Callable[[list[Parameter]], Optimizer]


def start() -> list[Tensor]:
    """Initial parameters of a network of two layers."""
    generator = torch.Generator().manual_seed(3)
    shapes = ((6, 5), (6,), (2, 6), (2,))
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def loss_gradients(worker: int, step: int, values: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a regression on a mini-batch of the worker."""
    generator = torch.Generator().manual_seed(1000 * worker + step)
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    a, b, c, d = (value.detach().clone().requires_grad_() for value in values)
    loss = ((torch.tanh(x @ a.T + b) @ c.T + d - y) ** 2).mean()
    return list(torch.autograd.grad(loss, [a, b, c, d]))


def train(
    make: Make,
    *,
    weather: Weather | None = None,
    steps: int = STEPS,
    workers: int = WORKERS,
    seed: int = 0,
    every: int = 0,
    **terms: Any,
) -> list[Tensor]:
    """Train with PSP-SGD from the same start, and return the final model of all ranks."""
    run = Cluster(
        workers,
        start(),
        lambda worker, step, own: loss_gradients(worker, step, list(own)),
        steps=steps,
        make=make,
        weather=weather,
        settings=PSPSettings(**terms),
        rendezvous_every=every,
        seed=seed,
    )
    run.run()
    models = run.models[-1]
    for model in models.values():
        assert all(torch.equal(one, other) for one, other in zip(model, models[0], strict=True))
    return models[0]


def together(make: Make, *, workers: int = WORKERS, summed: bool = False) -> list[Tensor]:
    """One optimizer with the mean, or the sum, of the gradients of all workers at every step."""
    w = [Parameter(value) for value in start()]
    optimizer = make(w)
    for step in range(STEPS):
        own = [loss_gradients(worker, step, w) for worker in range(workers)]
        for parameter, same in zip(w, zip(*own, strict=True), strict=True):
            total = torch.stack(same).sum(0)
            parameter.grad = total if summed else total / workers
        optimizer.step()
    return [value.detach() for value in w]


def assert_same(trained: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, other in zip(trained, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


SGD = [{"momentum": 0.0}, {"momentum": 0.9, "weight_decay": 0.05, "nesterov": True}]


@pytest.mark.parametrize("factor", [1, WORKERS])
@pytest.mark.parametrize("settings", SGD)
def test_all_pushes_and_all_blocks_are_synchronous_sgd(
    settings: dict[str, Any], factor: int
) -> None:
    """At N times the rate, or at the same rate without linear scaling."""
    trained = train(lambda p: optim.SGD(p, lr=0.01, **settings), linear_scaling=factor > 1)
    assert_same(trained, together(lambda p: optim.SGD(p, lr=0.01 * factor, **settings)))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_is_one_adam_on_the_summed_gradients(weight_decay: float) -> None:
    """Adam does not depend on the scale of gradients, except for eps and weight decay.

    With S = N g, the moments are N m and N^2 v, so that N eta m / (sqrt(v) + eps) is
    N eta (N m) / (sqrt(N^2 v) + N eps): an Adam on S with the rate N eta, with N eps, and with N
    times the decay, which is added to the gradient. The test uses a large eps, so that it matters.
    """
    trained = train(lambda p: optim.Adam(p, lr=0.005, eps=1e-2, weight_decay=weight_decay))
    settings = {"lr": 0.005, "eps": 1e-2, "weight_decay": weight_decay}
    scaled: Any = {name: value * WORKERS for name, value in settings.items()}
    assert_same(trained, together(lambda p: optim.Adam(p, **scaled), summed=True))


def test_warm_up_is_the_mean_at_the_unscaled_rate_for_any_settings() -> None:
    trained = train(
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
        weather=Weather(compute_s=[0.1, 0.1, 0.1, 3.0]),
        min_pushes=1,
        min_pulled=0.3,
        warmup_steps=STEPS,
    )
    assert_same(trained, together(lambda p: optim.SGD(p, lr=0.05, momentum=0.9)))


def test_a_rendezvous_changes_nothing() -> None:
    """A rendezvous during training is no step, and does not shorten the warm-up."""
    make: Make = lambda p: optim.Adam(p, lr=0.01)  # noqa: E731
    plain = train(make, warmup_steps=5)
    watched = train(make, warmup_steps=5, every=3)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_all_pushes_and_all_blocks_give_the_same_bits_for_any_latency(seed: int) -> None:
    """Gradients are added in order of rank, and not in order of arrival."""
    make: Make = lambda p: optim.SGD(p, lr=0.02, momentum=0.9)  # noqa: E731
    calm = train(make)
    weather = Weather(latency_s=(0.0, 2.0), compute_s=[0.1, 0.5, 0.2, 1.0])
    stormy = train(make, weather=weather, seed=seed)
    assert all(torch.equal(one, other) for one, other in zip(calm, stormy, strict=True))


def test_partial_pushes_follow_the_reference() -> None:
    """With c = 2 of 3, worker 2 takes 2.5 times as long, so that its first two gradients are late.

    Workers 0 and 1 push at 1, 2, 3 and 4. Worker 2 pushes at 2.5 (late: the servers have version
    2), and at 5 (late again). The servers use its gradients only after the others have ended.
    """
    weather = Weather(latency_s=(0.0, 0.0), compute_s=[1.0, 1.0, 2.5])
    trained = train(
        lambda p: optim.SGD(p, lr=0.02, momentum=0.9),
        weather=weather,
        workers=3,
        steps=4,
        min_pushes=2,
    )
    w = [Parameter(value) for value in start()]
    server = Server(w, optim.SGD(w, lr=0.02, momentum=0.9), c=2)
    late = loss_gradients(2, 0, w)
    for step in range(4):
        own = [loss_gradients(worker, step, w) for worker in (0, 1)]
        for gradient in own:
            server.push(gradient, step)
        if step == 1:
            server.push(late, 0)
            late = loss_gradients(2, 1, w)
    server.push(late, 2)
    server.c = 1  # worker 2 is alone
    for step in (2, 3):
        server.push(loss_gradients(2, step, w), server.t)
    assert_same(trained, [value.detach() for value in w])


def test_a_server_with_a_push_timeout_takes_the_late_gradient() -> None:
    """tau_1 is 1.6 s after the first two pushes. The third arrives 1.5 s later in every round."""
    weather = Weather(latency_s=(0.0, 0.0), compute_s=[1.0, 1.0, 2.5])
    trained = train(
        lambda p: optim.SGD(p, lr=0.02),
        weather=weather,
        workers=3,
        min_pushes=2,
        push_timeout_s=1.6,
    )
    assert_same(trained, together(lambda p: optim.SGD(p, lr=0.02 * 3), workers=3))
