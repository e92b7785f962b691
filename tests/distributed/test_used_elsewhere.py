"""Groups that use different parameters in the warm-up get the same mean gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lightning_hier as lh
from tests.distributed.gradients import Branches, inputs, start
from tests.ranks import run_ranks


class _Convolutions(Branches):
    """Weights whose order in memory is not that of their indices."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(2, 3, (1, 3), bias=False) for _ in range(3))
        self.branches = nn.ModuleList(layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, batch: Tensor) -> Tensor:
        pictures = batch.view(-1, 2, 1, 3)
        return torch.stack([self.branches[index](pictures) for index in sorted(self.used)])


def _warm_up(group_size: int, bucket_views: bool) -> None:
    torch.manual_seed(5)
    module = _Convolutions().double()
    run = start(
        lh.AllReduce(),
        module,
        group_size=group_size,
        find_unused=True,
        warming=True,
        bucket_views=bucket_views,
        bucket_cap_mb=0.0002,
    )
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(6):
        # One branch for the last rank, one for all, and one for nobody, in turns.
        module.used = {step % 3} | ({(step + 1) % 3} if last else set())
        own = run.own_gradients(inputs(step))
        run.step(inputs(step), counted=False)
        for name, parameter in module.named_parameters():
            dist.all_reduce(own[name])
            mean = own[name] / dist.get_world_size()
            if f".{(step + 2) % 3}." in name:
                assert parameter.grad is None
            else:
                assert torch.allclose(parameter.grad, mean, rtol=1e-12), (name, step)


@pytest.mark.parametrize(
    ("ranks", "group_size", "bucket_views"), [(2, 1, False), (2, 1, True), (4, 2, False)]
)
def test_gradients_of_parameters_that_one_group_uses_reach_the_others(
    ranks: int, group_size: int, bucket_views: bool
) -> None:
    run_ranks(_warm_up, ranks, group_size, bucket_views)
