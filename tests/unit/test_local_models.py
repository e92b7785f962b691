"""Local models that take turns in one module: nothing of one reaches another, nothing is copied."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.worker_random import WorkerRandom
from lightning_hier.strategies.checkpoints.run_state import copy_optimizer_

KINDS = [("SGD", {"momentum": 0.9}), ("Adam", {}), ("RMSprop", {}), ("Adagrad", {}), ("ASGD", {})]


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


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_models_in_turns_go_the_way_of_models_alone(kind: str, options: dict[str, Any]) -> None:
    module = _module()
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.1, **options)
    _step(module, optimizer, seed=99)
    models = LocalModels(module, [optimizer], number=3)
    models.open()
    for turn in range(4):
        for number in models.each():
            _step(module, optimizer, seed=10 * number + turn)
    for number in models.each():
        alone = _module()
        own = getattr(torch.optim, kind)(alone.parameters(), lr=0.1, **options)
        for seed in [99, *(10 * number + turn for turn in range(4))]:
            _step(alone, own, seed)
        for one, other in zip(_state(module), _state(alone), strict=True):
            assert torch.equal(one, other)
    assert models.current == 0


class _Counting(torch.optim.Optimizer):
    """Keeps its step count and a sum in its groups, as optimizers outside torch do."""

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


def test_what_a_step_changes_in_groups_is_its_models_and_what_schedulers_set_is_for_all() -> None:
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
        (found,), (expected,) = optimizer.param_groups, own.param_groups
        assert [found[name] for name in ("lr", "k", "sum")] == [
            expected[name] for name in ("lr", "k", "sum")
        ]


def test_a_checkpoint_gives_every_model_its_groups() -> None:
    module = _module()
    optimizer, _ = _scheduled(module)
    _step(module, optimizer, seed=0)
    saved = deepcopy(optimizer.state_dict())
    models = LocalModels(module, [optimizer], number=2)
    models.open()
    for _ in range(2):
        _step(module, optimizer, seed=1)
    models.take(1)
    copy_optimizer_(optimizer, saved)
    models.take(0)
    assert [optimizer.param_groups[0][name] for name in ("k", "sum")] == [3, pytest.approx(0.3)]
    models.take(1)
    assert [optimizer.param_groups[0][name] for name in ("k", "sum")] == [1, pytest.approx(0.1)]


def test_state_that_one_model_has_made_is_not_that_of_another() -> None:
    module = _module()
    optimizer = torch.optim.Adam(module.parameters())
    models = LocalModels(module, [optimizer], number=2)
    models.open()
    models.take(1)
    _step(module, optimizer, seed=0)
    models.take(0)
    assert not optimizer.state
    models.take(1)
    assert len(optimizer.state) == len(list(module.parameters()))


def test_turns_copy_nothing_and_keep_who_is_who() -> None:
    module = _module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    _step(module, optimizer, seed=0)
    models = LocalModels(module, [optimizer], number=2)
    models.open()
    weight = next(module.parameters())
    momentum = optimizer.state[weight]["momentum_buffer"]
    places = []
    for _ in range(2):
        for _ in models.each():
            assert next(module.parameters()) is weight
            assert optimizer.state[weight]["momentum_buffer"] is momentum
            places.append((weight.data_ptr(), momentum.data_ptr()))
    assert places[:2] == places[2:]
    assert len(set(places)) == 2


def test_gradients_that_are_accumulated_belong_to_their_model() -> None:
    module = nn.Linear(2, 1, bias=False)
    models = LocalModels(module, [torch.optim.SGD(module.parameters(), lr=0.1)], number=2)
    models.open()
    for number in models.each():
        module(torch.full((1, 2), 1.0 + number)).sum().backward()
    found = [module.weight.grad.tolist() for _ in models.each()]
    assert found == [[[1.0, 1.0]], [[2.0, 2.0]]]


def test_what_is_frozen_for_a_while_still_takes_turns() -> None:
    module = nn.Linear(2, 1)
    models = LocalModels(module, [], number=2)
    models.open()
    module.bias.requires_grad_(False)
    for number in models.each():
        with torch.no_grad():
            module.bias.fill_(float(number))
    assert [float(module.bias) for _ in models.each()] == [0.0, 1.0]


def test_weights_that_share_memory_still_do() -> None:
    """As those of an LSTM on a GPU."""
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


def test_buffers_that_are_bound_anew_take_turns_and_stay_the_same_tensors() -> None:
    module: Any = nn.Module()
    module.register_buffer("center", torch.zeros(2))
    first = module.center
    models = LocalModels(module, [], number=2)
    models.open()
    for turn in range(2):
        for number in models.each():
            assert module.center.tolist() == [float(turn * (1 + number))] * 2
            module.center = module.center + 1.0 + number
    models.buffers.reclaim()
    assert module.center is first and first.tolist() == [2.0, 2.0]
    assert [model.tolist() for _ in models.each() for model in (module.center.clone(),)] == [
        [2.0, 2.0], [4.0, 4.0],
    ]  # fmt: skip


def test_models_are_opened_for_a_while() -> None:
    module = _module()
    models = LocalModels(module, [], number=2)
    with models.opened():
        assert len(list(models.each())) == 2
    assert len(list(models.each())) == 1


def test_workers_draw_from_their_own_numbers() -> None:
    torch.manual_seed(3)
    random = WorkerRandom(3, torch.device("cpu"))
    drawn: list[list[float]] = [[], [], []]
    for turn in range(3):
        for worker in range(3):
            with random.of(worker):
                drawn[worker] += torch.rand(1 + (turn + worker) % 2).tolist()
    torch.manual_seed(3)
    expected = torch.rand(6)  # drawn at once, or one after the other
    assert all(own == expected[: len(own)].tolist() for own in drawn)


def _memory(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Bytes by where they lie."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*module.parameters(), *module.buffers(), *states]
    return {own.untyped_storage().data_ptr(): own.untyped_storage().nbytes() for own in tensors}


def test_a_model_takes_the_memory_of_its_state_and_a_turn_less_time_than_a_copy() -> None:
    module = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(4)))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    alone = sum(_memory(module, optimizer).values())
    models = LocalModels(module, [optimizer], number=5)
    models.open()
    together: dict[int, int] = {}
    for _ in models.each():
        together |= _memory(module, optimizer)
    assert sum(together.values()) == 5 * alone

    def least(act: Callable[[], object]) -> float:
        taken = []
        for _ in range(10):
            begun = time.thread_time()
            act()
            taken.append(time.thread_time() - begun)
        return min(taken)

    other = [torch.empty_like(own) for own in module.parameters()]
    turn = least(lambda: list(models.each())) / 5
    assert turn < least(lambda: torch._foreach_copy_(other, list(module.parameters())))
