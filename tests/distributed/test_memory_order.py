"""Flat gradients outside DDP have the same element order as those in DDP's buckets."""

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
    """A module whose parameters have different memory orders."""

    def __init__(self) -> None:
        super().__init__()
        self.channels_last = nn.Conv2d(3, 4, (2, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.transposed = Parameter(torch.randn(5, 4).t())
        self.strided = Parameter(torch.randn(4, 6)[:, ::2])
        self.scalar = Parameter(torch.randn(()))

    def forward(self, batch: Tensor) -> Tensor:
        means = self.channels_last(batch).mean((2, 3))
        return (means @ self.transposed).sum() * self.scalar + (means @ self.strided).square().sum()


def _orders() -> None:
    torch.manual_seed(2)
    module, batch = _Net(), torch.randn(2, 3, 6, 6)
    run = start(lh.AllReduce(), module)
    own = list(module.parameters())
    expected = torch.autograd.grad(module(batch), own)
    gradients = dict(zip(own, expected, strict=True))
    seen: list[GradientBucket] = []
    reduce = run.hook.reducer.reduce

    def recording(bucket: GradientBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket)
        return reduce(bucket)

    run.hook.reducer.reduce = recording  # type: ignore[method-assign]
    run.model(batch).backward()
    of_workers = WorkerGradients(own, run.hook.reducer, run.hook.reached)
    with of_workers.of(0):
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.clone()
    of_workers.reduce([0])
    ddp, ours = seen
    for bucket in (ddp, ours):
        assert set(bucket.parameters) == set(own)
        for parameter, (piece,) in bucket.tensors():
            assert torch.equal(piece, flattened(gradients[parameter], parameter))
            assert torch.equal(shaped(piece, parameter), gradients[parameter])
    for parameter, gradient in gradients.items():
        assert torch.equal(parameter.grad, gradient)
    weight = module.channels_last.weight
    assert weight.grad.stride() == weight.stride()


def test_flat_gradients_have_the_memory_order_of_their_parameters() -> None:
    run_ranks(_orders, 1)
