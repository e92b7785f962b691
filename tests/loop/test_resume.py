"""State of a plain loop in `torch.distributed.checkpoint`: exact, elsewhere, asynchronous."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import lightning_hier as lh
from tests.loop.loops import Loop, normed
from tests.ranks import run_ranks

ADAM = {"block_sync": lh.BMUFAdam(block_size=4), "warmup_steps": 2}
GTC = lh.GTC(density=0.2, dense_below=10)


class Normed(nn.Sequential):
    """The layers of `normed`, and in front of their parameters one without elements."""

    def __init__(self) -> None:
        super().__init__(*normed())
        self.none = nn.Parameter(torch.empty(0))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        return outputs + self.none.sum()


class Ordered(nn.Module):
    """Uses its layers in another order in the second group of three ranks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.layers = nn.ModuleList(nn.Linear(4, 2) for _ in range(5))

    def forward(self, inputs: Tensor) -> Tensor:
        ordered = self.layers if dist.get_rank() < 3 else reversed(self.layers)
        return torch.stack([torch.tanh(layer(inputs)) for layer in ordered]).sum(0)


def continued(
    folder: str,
    group_size: int,
    asynchronous: bool,
    make_module: Callable[[], nn.Module] = Normed,
    **settings: Any,
) -> Tensor:
    """Weights of the uninterrupted and of the resumed run, after every step as rows."""
    loop = Loop(group_size, make_module=make_module, **settings)
    loop.train(7)
    state = {"blocks": loop.blocks}
    saving = dcp.async_save(state, checkpoint_id=folder) if asynchronous else None
    if saving is None:
        dcp.save(state, checkpoint_id=folder)
    rows = [weights_after_steps(loop, 6)]
    if saving is not None:
        saving.result()
    again = Loop(group_size, make_module=make_module, **settings)
    dcp.load({"blocks": again.blocks}, checkpoint_id=folder)
    again.done = 7
    return torch.stack([*rows, weights_after_steps(again, 6)])


def weights_after_steps(loop: Loop, steps: int) -> Tensor:
    seen = []
    for _ in range(steps):
        loop.train(1)
        seen.append(loop.weights())
    loop.blocks.finish()
    return torch.stack([*seen, loop.weights()])


TIERS = {
    "block_sync": lh.BMUF(block_momentum=0.5, block_size=3),
    "gradient_sync": GTC,
    "warmup_steps": 2,
}
ORDERED = {"block_sync": lh.ModelAveraging(block_size=3), "warmup_steps": 0, "make_module": Ordered}
STREAMING = {"block_sync": lh.DiLoCo(block_size=4, fragments=2, overlap=1), "warmup_steps": 1}


@pytest.mark.parametrize(
    ("ranks", "group_size", "asynchronous", "settings"),
    [
        (4, 2, False, TIERS),
        (2, 1, False, STREAMING),
        (2, 1, True, ADAM),
        (6, 3, False, ORDERED),
    ],
)
def test_a_loaded_run_continues_bit_for_bit(
    tmp_path: Path, ranks: int, group_size: int, asynchronous: bool, settings: dict[str, Any]
) -> None:
    """In the middle of a block. An asynchronous save is of the step at which it began."""
    arguments = str(tmp_path), group_size, asynchronous
    env = {"GLOO_LOG_LEVEL": "ERROR"} if asynchronous else None
    for rows in run_ranks(continued, ranks, *arguments, env=env, **settings):
        assert torch.equal(rows[0], rows[1])


def rolled_back(folder: str, wrap: str) -> tuple[Tensor, Tensor]:
    """Weights after the first time, and after the second, to which a state of the warm-up leads."""
    loop = Loop(1, wrap=wrap, block_sync=lh.BMUF(block_size=2), warmup_steps=3)
    loop.train(2)
    dcp.save({"blocks": loop.blocks}, checkpoint_id=folder)
    loop.train(5)
    first = loop.weights()
    loop.optimizer.step()  # is not counted
    dcp.load({"blocks": loop.blocks}, checkpoint_id=folder)
    loop.done = 2
    loop.train(5)
    return first, loop.weights()


@pytest.mark.parametrize("wrap", ["", "world"])
def test_a_run_goes_back_to_its_own_warm_up(tmp_path: Path, wrap: str) -> None:
    for first, second in run_ranks(rolled_back, 2, str(tmp_path), wrap):
        assert torch.equal(first, second)


def saved(folder: str, group_size: int, **settings: Any) -> Tensor:
    """The global model that is saved."""
    loop = Loop(group_size, **settings)
    loop.train(7)
    loop.optimizer.param_groups[0]["lr"] = np.float64(0.01)  # as a schedule does
    dcp.save({"blocks": loop.blocks}, checkpoint_id=folder)
    with loop.blocks.global_model():
        return loop.weights()


def elsewhere(
    folder: str, group_size: int, **settings: Any
) -> tuple[Tensor, Tensor, list[str], float]:
    """The global model that is loaded, the final one, warnings, and the learning rate."""
    loop = Loop(group_size, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.load({"blocks": loop.blocks}, checkpoint_id=folder)
    with loop.blocks.global_model():
        loaded = loop.weights()
    loop.done = 7
    loop.train(5)
    loop.blocks.finish()
    rate = loop.optimizer.param_groups[0]["lr"]
    return loaded, loop.weights(), [str(warning.message) for warning in caught], rate


def test_a_run_of_other_groups_starts_from_the_global_model(tmp_path: Path) -> None:
    sync = lh.DiLoCo(block_size=5, fragments=2, overlap=2)
    texts = check_elsewhere(str(tmp_path), (4, 2), (3, 1), block_sync=sync, warmup_steps=1)
    assert "instead of 2 of 2. Therefore" in texts and "the current block ended after" in texts


def check_elsewhere(
    folder: str, before: tuple[int, int], now: tuple[int, int], **settings: Any
) -> str:
    """Save with so many ranks and ranks of a group, load with others, and return the warnings."""
    [expected, *_] = run_ranks(saved, before[0], folder, before[1], **settings)
    outcomes = run_ranks(elsewhere, now[0], folder, now[1], **settings)
    for loaded, final, _, rate in outcomes:
        assert rate == 0.01  # that of the saved run
        # W is computed anew from vectors of another division.
        torch.testing.assert_close(loaded, expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(final, outcomes[0][1])
    return " ".join(outcomes[0][2])


def test_a_run_of_one_group_goes_on_in_several(tmp_path: Path) -> None:
    """A single group has no automatic momentum, and nothing in flight."""
    sync = lh.BMUFAdam(block_size=5, overlap=2)
    check_elsewhere(str(tmp_path), (2, 2), (2, 1), block_sync=sync, warmup_steps=0)


def divided(folder: str, steps: int) -> Tensor:
    """Train a module that FSDP2 divides and save, or load without a step. W."""
    dist.init_process_group("gloo")
    groups = lh.Groups(2)
    module = normed()
    fully_shard(module, mesh=groups.mesh["group"])
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    blocks = lh.attach(module, optimizer, groups=groups, **ADAM)
    if not steps:
        dcp.load({"blocks": blocks}, checkpoint_id=folder)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(6, 4, generator=generator)
        module(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        blocks.step()
    if steps:
        dcp.save({"blocks": blocks}, checkpoint_id=folder)
    with blocks.global_model():
        return whole(module)


def whole(module: nn.Module) -> Tensor:
    tensors = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in module.parameters()]
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def test_a_module_that_fsdp_divides_is_saved_and_loaded_by_other_ranks(tmp_path: Path) -> None:
    expected, *others = run_ranks(divided, 4, str(tmp_path), 7)
    assert all(torch.equal(other, expected) for other in others)
    for loaded in run_ranks(divided, 2, str(tmp_path), 0):
        torch.testing.assert_close(loaded, expected, rtol=1e-6, atol=1e-7)
