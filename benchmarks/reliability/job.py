"""Training script of the soak test, for torchrun.

    torchrun ... -m benchmarks.reliability.job FOLDER STRATEGY

It resumes from the newest complete checkpoint in ``FOLDER``, and logs its progress there
(:mod:`benchmarks.reliability.event_log`). At the end, each rank saves its model
(``final_<rank>.pt``). Dropout, BatchNorm, shuffling and noise in the data change the model if a
resume loses any state.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import lightning_hier as lh
from benchmarks.reliability.event_log import EventLog
from benchmarks.reliability.random_kill import RandomKill
from examples.quiet import quiet_trainer

ROWS = 2
BATCHES = 10
LIMIT_S = 30.0

_GTC: dict[str, Any] = {"density": 0.2, "dense_below": 10, "warmup_steps": 0}
STRATEGIES: dict[str, Any] = {
    "bmuf": lambda **limit: lh.BMUFStrategy(block_size=4, warmup_steps=0, **limit),
    "bmuf_adam": lambda **limit: lh.BMUFAdamStrategy(
        block_size=4, warmup_steps=0, local_beta1="keep", **limit
    ),
    "bmuf_gtc": lambda **limit: lh.BMUFGTCStrategy(group_size=2, block_size=4, **_GTC, **limit),
    "gtc": lambda **limit: lh.GTCStrategy(**_GTC, **limit),
    "model_averaging": lambda **limit: lh.ModelAveragingStrategy(
        block_size=4, warmup_steps=0, **limit
    ),
}


class NoisyRows(Dataset[tuple[Tensor, Tensor]]):
    """Dataset that adds new noise to a row each time it is read."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(rows, 16, generator=generator)
        self.targets = torch.randn(rows, 4, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(16), self.targets[index]


class DropoutNet(pl.LightningModule):
    """Small network whose steps take at least ``pause_s``, so that faults happen in training."""

    def __init__(self, optimizer: str, *, width: int, pause_s: float) -> None:
        super().__init__()
        self.optimizer, self.pause_s = optimizer, pause_s
        self.net = nn.Sequential(
            nn.Linear(16, width),
            nn.BatchNorm1d(width),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(width, 4),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        time.sleep(self.pause_s)
        return (self.net(batch[0]) - batch[1]).square().mean()

    def configure_optimizers(self) -> Any:
        settings = {"momentum": 0.9} if self.optimizer == "SGD" else {}
        optimizer = getattr(torch.optim, self.optimizer)(self.parameters(), lr=0.02, **settings)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train to the end, or until a fault stops the process."""
    options = _options(arguments)
    folder = options.folder
    world = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    model = DropoutNet(
        "Adam" if options.strategy == "bmuf_adam" else "SGD",
        width=options.width,
        pause_s=options.pause_ms / 1000,
    )
    trainer = quiet_trainer(
        STRATEGIES[options.strategy](timeout=timedelta(seconds=LIMIT_S)),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        callbacks=[
            ModelCheckpoint(folder, every_n_train_steps=options.save_every, save_last=True),
            EventLog(folder),
            *([] if options.kills is None else [RandomKill(folder, *options.kills)]),
        ],
        max_epochs=options.epochs,
        enable_checkpointing=True,
        use_distributed_sampler=True,
    )
    torch.manual_seed(1 + int(os.environ["RANK"]))
    rows = ROWS * BATCHES * world
    data = DataLoader(NoisyRows(rows), batch_size=ROWS, shuffle=True)
    trainer.fit(model, data, ckpt_path=lh.newest_checkpoint(folder))
    torch.save(
        {"state": model.state_dict(), "steps": trainer.global_step, "world": world},
        folder / f"final_{trainer.global_rank}.pt",
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=3, help="steps between saves")
    parser.add_argument("--pause-ms", type=float, default=0.0, help="minimum time of a step")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--kills",
        type=int,
        nargs=2,
        metavar=("SEED", "NUMBER"),
        help="kill random ranks at random times, NUMBER times in total",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
