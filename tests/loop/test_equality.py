"""The plain loop and the Trainer: the same weights after the same steps, bit for bit."""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import pytest
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


@pytest.mark.parametrize(
    ("ranks", "group_size", "settings"),
    [
        (1, 1, {"block_sync": lh.BMUFAdam(block_size=4)}),
        (2, 1, {"block_sync": lh.BMUFAdam(block_size=3), "warmup_steps": 3}),
        (2, 2, {"gradient_sync": GTC, "warmup_steps": 2}),
        (
            4,
            1,
            {
                "block_sync": lh.BMUF(block_momentum=0.5, block_size=4, local_momentum="keep"),
                "warmup_steps": 0,
            },
        ),
        (4, 2, {"block_sync": lh.BMUFAdam(block_size=4), "gradient_sync": GTC, "warmup_steps": 3}),
        (4, 2, {"block_sync": lh.DiLoCo(block_size=4, fragments=2, overlap=1), "warmup_steps": 1}),
        (4, 2, {"block_sync": lh.ModelAveraging()}),  # with automatic values
    ],
)
def test_the_loop_trains_as_the_trainer(
    ranks: int, group_size: int, settings: dict[str, Any]
) -> None:
    for in_trainer, in_loop in run_ranks(both, ranks, group_size, **settings):
        for step, (expected, found) in enumerate(zip(in_trainer, in_loop, strict=True)):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=f"step {step}")
