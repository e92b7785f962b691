"""Local models of virtual workers in one module do not affect each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.local_models import LocalModels


def _module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def _step(module: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    module(torch.randn(5, 3, generator=generator, dtype=torch.float64)).square().sum().backward()
    optimizer.step()


def _state(module: nn.Module) -> list[Tensor]:
    return [value.clone() for value in module.state_dict().values()]


class _Counting(torch.optim.Optimizer):
    """Stores its step count and a sum in its groups, as optimizers outside torch do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0, "sum": torch.zeros((), dtype=torch.float64)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] += 1
            group["sum"] += group["lr"]
            for own in group["params"]:
                own.sub_(own.grad, alpha=group["lr"] / group["k"] * float(group["sum"]))


def _scheduled(module: nn.Module) -> tuple[_Counting, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = _Counting(module.parameters())
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_values_in_groups_belong_to_a_model_if_its_steps_change_them() -> None:
    """Values that schedulers set are common to all models."""
    module = _module()
    optimizer, scheduler = _scheduled(module)
    models = LocalModels(module, [optimizer], number=3)
    models.open()
    for turn in range(4):
        for number in models.each():
            _step(module, optimizer, seed=10 * number + turn)
        scheduler.step()
    for number in models.each():
        alone = _module()
        own, schedule = _scheduled(alone)
        for turn in range(4):
            _step(alone, own, seed=10 * number + turn)
            schedule.step()
        for one, other in zip(_state(module), _state(alone), strict=True):
            assert torch.equal(one, other)
        (group,), (expected,) = optimizer.param_groups, own.param_groups
        assert [group[name] for name in ("lr", "k", "sum")] == [
            expected[name] for name in ("lr", "k", "sum")
        ]


def test_weights_that_share_memory_share_it_in_every_model() -> None:
    """The weights of an LSTM on a GPU share memory."""
    memory = torch.arange(6.0)
    module = nn.Module()
    module.first, module.second = nn.Parameter(memory[:2]), nn.Parameter(memory[2:].view(2, 2))
    models = LocalModels(module, [], number=2)
    models.open()
    models.take(1)
    first, second = module.first, module.second
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
    assert first.tolist() == [0.0, 1.0] and second.tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_gradients_that_are_accumulated_belong_to_their_model() -> None:
    module = nn.Linear(2, 1, bias=False)
    models = LocalModels(module, [torch.optim.SGD(module.parameters(), lr=0.1)], number=2)
    models.open()
    for number in models.each():
        module(torch.full((1, 2), 1.0 + number)).sum().backward()
    gradients = [module.weight.grad.tolist() for _ in models.each()]
    assert gradients == [[[1.0, 1.0]], [[2.0, 2.0]]]
