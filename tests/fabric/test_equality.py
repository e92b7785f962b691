"""Fabric, the plain loop and the Trainer: the same weights after the same steps, bit for bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist
from lightning.fabric.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from examples.quiet import quiet_trainer
from lightning_hier.fabric import HierarchicalStrategy
from tests.fabric.loops import FabricLoop, launched
from tests.loop.loops import Loop, adam, batch, flat, network
from tests.ranks import run_ranks
from tests.trainer.fitting import fits_on_ranks

STEPS = 11
GTC = lh.GTC(density=0.2, dense_below=10)


def both(group_size: int, **settings: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Weights after every step, and at the end, of the plain loop and of Fabric."""
    fabric = FabricLoop(group_size, total_steps=STEPS, **settings)
    loop = Loop(group_size, total_steps=STEPS, **settings)
    seen: tuple[list[Tensor], list[Tensor]] = [], []
    for run, weights in zip((loop, fabric), seen, strict=True):
        for _ in range(STEPS):
            run.train(1)
            weights.append(run.weights())
    loop.blocks.finish()
    fabric.fabric.strategy.finish()
    return [*seen[0], loop.weights()], [*seen[1], fabric.weights()]


def both_of_all() -> list[tuple[list[Tensor], list[Tensor]]]:
    streaming = lh.DiLoCo(block_size=4, fragments=2, overlap=1)
    return [
        both(1, block_sync=lh.BMUFAdam(block_size=3), warmup_steps=3),
        both(2, block_sync=lh.BMUF(), gradient_sync=GTC),  # with automatic values
        both(2, block_sync=streaming, warmup_steps=1),
    ]


def test_fabric_trains_as_the_loop() -> None:
    """The loop equals the Trainer (`tests/loop/test_equality.py`)."""
    for runs in run_ranks(both_of_all, 4):
        for case, (in_loop, in_fabric) in enumerate(runs):
            for step, (expected, found) in enumerate(zip(in_loop, in_fabric, strict=True)):
                message = f"case {case}, step {step}"
                torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=message)


def optimizers_of(module: nn.Sequential) -> list[torch.optim.Optimizer]:
    return [adam(module[0]), torch.optim.SGD(module[2].parameters(), lr=0.1)]


class Alternating(pl.LightningModule):
    """Steps one optimizer at every step, and the other at every second one."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network()

    def training_step(self, _: Any, step: int) -> None:
        first, second = self.optimizers()
        inputs, targets = batch(step, dist.get_rank())
        self.manual_backward((self.network(inputs) - targets).square().mean())
        first.step()
        if step % 2:
            second.step()
        self.network.zero_grad()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return optimizers_of(self.network)


def alternating() -> tuple[Tensor, Tensor, Tensor]:
    settings: dict[str, Any] = {
        "group_size": 2,
        "block_sync": lh.ModelAveraging(block_size=3),
        "warmup_steps": 0,
    }
    trained = Alternating()
    trainer = quiet_trainer(lh.HierarchicalStrategy(**settings), devices=4, max_epochs=1)
    trainer.fit(trained, DataLoader(TensorDataset(torch.zeros(STEPS))))

    def train(apart: bool) -> Tensor:
        fabric = launched(HierarchicalStrategy(**settings))
        module = network()
        if apart:  # a module for each optimizer
            layers = [module[0], module[2]]
            pairs = [
                fabric.setup(*pair) for pair in zip(layers, optimizers_of(module), strict=True)
            ]
            (lower, first), (upper, second) = pairs
            model: Any = nn.Sequential(lower, nn.Tanh(), upper)
        else:
            model, first, second = fabric.setup(module, *optimizers_of(module))
        for step in range(STEPS):
            inputs, targets = batch(step, dist.get_rank())
            fabric.backward((model(inputs) - targets).square().mean())
            first.step()
            if step % 2:
                second.step()
            model.zero_grad()
        fabric.strategy.finish()
        return flat(module)

    return flat(trained.network), train(apart=False), train(apart=True)


def test_optimizers_that_step_apart_and_modules_of_their_own() -> None:
    for in_trainer, together, apart in run_ranks(alternating, 4):
        assert torch.equal(together, in_trainer) and torch.equal(apart, in_trainer)


def accumulated() -> tuple[Tensor, Tensor]:
    """Two batches of each step, with clipped gradients, by hand and by Fabric."""
    settings: dict[str, Any] = {"block_sync": lh.BMUFAdam(block_size=2), "warmup_steps": 2}
    fabric = FabricLoop(2, **settings)
    loop = Loop(2, **settings)
    assert isinstance(loop.model, DistributedDataParallel)
    for step in range(0, 10, 2):
        first, second = batch(step, dist.get_rank()), batch(step + 1, dist.get_rank())
        with loop.model.no_sync():
            (loop.model(first[0]) - first[1]).square().mean().backward()
        (loop.model(second[0]) - second[1]).square().mean().backward()
        nn.utils.clip_grad_norm_(loop.module.parameters(), 0.1)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.blocks.step()
        for (inputs, targets), waits in ((first, True), (second, False)):
            with fabric.fabric.no_backward_sync(fabric.model, enabled=waits):
                fabric.fabric.backward((fabric.model(inputs) - targets).square().mean())
        fabric.fabric.clip_gradients(fabric.model, fabric.optimizer, max_norm=0.1)
        fabric.optimizer.step()
        fabric.optimizer.zero_grad()
    return loop.weights(), fabric.weights()


def test_accumulation_and_clipping() -> None:
    for by_hand, by_fabric in run_ranks(accumulated, 4):
        assert torch.equal(by_hand, by_fabric)


def mixed(precision: str) -> tuple[int, Tensor, Tensor]:
    """Train with a step whose gradients overflow on one rank. Counted steps, and W."""
    plugin = MixedPrecision("bf16-mixed", "cpu")
    if precision == "16-mixed":
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    settings = {"gradient_sync": GTC, "block_sync": lh.ModelAveraging(block_size=3)}
    run = FabricLoop(2, warmup_steps=1, fabric={"plugins": [plugin]}, **settings)
    run.train(4)
    if precision == "16-mixed":
        factor = torch.inf if dist.get_rank() == 0 else 1.0
        run.fabric.backward(run.model(torch.ones(6, 4)).sum() * factor)
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.done += 1
    run.train(3)
    strategy: Any = run.fabric.strategy
    with strategy.global_model():
        inside = run.weights()
    strategy.finish()
    return strategy.blocks[0].steps, inside, run.weights()


def test_mixed_precision() -> None:
    runs = fits_on_ranks(4, *(partial(mixed, each) for each in ("bf16-mixed", "16-mixed")))
    for steps, outcomes in zip((7, 8), runs, strict=True):
        for counted, inside, final in outcomes:
            assert counted == steps
            assert torch.equal(inside, outcomes[0][1]) and torch.equal(final, inside)
            assert torch.isfinite(final).all() and not torch.equal(final, flat(network()))


def divided(path: str) -> tuple[Tensor, Tensor, Tensor]:
    """W of a module that FSDP2 divides: trained, as saved, and after loading."""
    fabric = launched(HierarchicalStrategy(group_size=2, block_sync=lh.BMUFAdam(block_size=3)))
    strategy: Any = fabric.strategy

    def built() -> tuple[Any, Any]:
        module = network()
        fully_shard(module, mesh=strategy.groups.mesh["group"])
        return fabric.setup(module, adam(module))

    def whole(model: Any) -> Tensor:
        with strategy.global_model():
            return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])

    model, optimizer = built()
    for step in range(7):
        inputs, targets = batch(step, dist.get_rank())
        fabric.backward((model(inputs) - targets).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    fabric.save(path, {"model": model, "optimizer": optimizer})
    trained = whole(model)
    strategy.finish()
    ended = optimizer
    model, optimizer = built()
    with pytest.raises(RuntimeError, match="which ended its training"):
        ended.step()
    fabric.load(path, {"model": model, "optimizer": optimizer})
    saved = torch.load(path, weights_only=True)["model"]
    return trained, torch.cat([value.reshape(-1) for value in saved.values()]), whole(model)


def test_modules_that_fsdp_divides(tmp_path: Any) -> None:
    for trained, saved, loaded in run_ranks(divided, 4, str(tmp_path / "a.ckpt")):
        assert torch.equal(saved, trained) and torch.equal(loaded, trained)
