"""Flat gradients outside DDP have the order of those in its buckets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter

import lightning_hier as lh
from lightning_hier.comm.gradients.reducers import GradientBucket
from lightning_hier.comm.gradients.worker_gradients import WorkerGradients, flattened, shaped
from tests.distributed.gradients import start
from tests.ranks import run_ranks


class _Net(nn.Module):
    """Parameters of every kind of order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Conv2d(3, 4, (2, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.turned = Parameter(torch.randn(5, 4).t())
        self.distribute = Parameter(torch.randn(4, 6)[:, ::2])
        self.number = Parameter(torch.randn(()))

    def forward(self, batch: Tensor) -> Tensor:
        means = self.picture(batch).mean((2, 3))
        return (means @ self.turned).sum() * self.number + (means @ self.distribute).square().sum()


def _orders() -> None:
    torch.manual_seed(2)
    module, batch = _Net(), torch.randn(2, 3, 6, 6)
    run = start(lh.AllReduce(), module)
    own = list(module.parameters())
    expected = torch.autograd.grad(module(batch), own)
    gradients = dict(zip(own, expected, strict=True))
    seen: list[GradientBucket] = []
    reduce = run.hook.reducer.reduce

    def noting(bucket: GradientBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket)
        return reduce(bucket)

    run.hook.reducer.reduce = noting  # type: ignore[method-assign]
    run.model(batch).backward()
    turns = WorkerGradients(own, run.hook.reducer, run.hook.reached)
    with turns.of(0):
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.clone()
    turns.reduce([0])
    ddp, ours = seen
    for bucket in (ddp, ours):
        assert set(bucket.parameters) == set(own)
        for parameter, (piece,) in bucket.tensors():
            assert torch.equal(piece, flattened(gradients[parameter], parameter))
            assert torch.equal(shaped(piece, parameter), gradients[parameter])
    for parameter, gradient in gradients.items():
        assert torch.equal(parameter.grad, gradient)
    assert module.picture.weight.grad.stride() == module.picture.weight.stride()


def test_all_have_the_order_of_the_parameter_in_memory() -> None:
    run_ranks(_orders, 1)
