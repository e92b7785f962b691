"""The plain loop and the Trainer: the same weights after the same steps, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import lightning_hier as lh
from examples.quiet import quiet_trainer
from tests.loop.loops import Loop, adam, batch, flat, network
from tests.ranks import run_ranks

STEPS = 11


class InTrainer(pl.LightningModule):
    """The network of the loop. `seen` has its weights after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.seen: list[Tensor] = []

    def training_step(self, _: Any, step: int) -> Tensor:
        inputs, targets = batch(step, dist.get_rank())
        loss: Tensor = (self.network(inputs) - targets).square().mean()
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(flat(self.network))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return adam(self.network)


def both(group_size: int, **settings: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Weights after every step, and at the end, of the Trainer and of the plain loop."""
    model = InTrainer()
    strategy = lh.HierarchicalStrategy(group_size=group_size, **settings)
    trainer = quiet_trainer(strategy, devices=int(os.environ["WORLD_SIZE"]), max_epochs=1)
    trainer.fit(model, DataLoader(TensorDataset(torch.zeros(STEPS))))
    loop = Loop(group_size, total_steps=STEPS, **settings)
    seen = []
    for _ in range(STEPS):
        loop.train(1)
        seen.append(loop.weights())
    loop.blocks.finish()
    return [*model.seen, flat(model.network)], [*seen, loop.weights()]


GTC = lh.GTC(density=0.2, dense_below=10)
STREAMING = lh.DiLoCo(block_size=4, fragments=2, overlap=1)


def both_of_all() -> list[tuple[list[Tensor], list[Tensor]]]:
    return [
        both(1, block_sync=lh.BMUFAdam(block_size=3), warmup_steps=0),
        both(4, gradient_sync=GTC, warmup_steps=2),
        both(2, block_sync=STREAMING, gradient_sync=GTC, warmup_steps=1),
        both(2, block_sync=lh.ModelAveraging()),  # with automatic values
    ]


def test_the_loop_trains_as_the_trainer() -> None:
    """The warm-up of a bare module is on two ranks, whose sums do not depend on the order."""
    warm = run_ranks(both, 2, 1, block_sync=lh.BMUFAdam(block_size=3), warmup_steps=3)
    for runs in [warm, *run_ranks(both_of_all, 4)]:
        for case, (in_trainer, in_loop) in enumerate(runs):
            for step, (expected, found) in enumerate(zip(in_trainer, in_loop, strict=True)):
                message = f"case {case}, step {step}"
                torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=message)
