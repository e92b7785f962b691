"""A group of the storm, or a rank of the job that is restarted as a whole.

    python -m benchmarks.elastic.job FOLDER --lighthouse http://127.0.0.1:29510 --group 0
    torchrun ... -m benchmarks.elastic.job FOLDER

Both train by the same strategy with groups of one rank. The second one saves a checkpoint at the
end of every block, and continues from the newest one in ``FOLDER``.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

import lightning_hier as lh
from benchmarks.elastic.task import Student, ValidLoss, rows
from examples.elastic.step_log import StepLog
from examples.image.step_pause import Pace

_LIMIT = timedelta(minutes=2)


def main() -> None:
    """Train until the process is killed, or to the given step."""
    asked = _parser().parse_args()
    folder: Path = asked.folder
    pl.seed_everything(asked.seed, verbose=False)
    torch.set_num_threads(1)
    train, valid = rows()
    own = asked.group if asked.lighthouse else int(os.environ["RANK"])
    log = StepLog(log_file(folder, own), block_size=asked.block_size, validate=ValidLoss(valid))
    saves = ModelCheckpoint(folder, every_n_train_steps=asked.block_size)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1 if asked.lighthouse else int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=_strategy(asked),
        callbacks=[Pace(asked.step_s), log, *([] if asked.lighthouse else [saves])],
        max_steps=asked.steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=not asked.lighthouse,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = None if asked.lighthouse else lh.newest_checkpoint(folder)
    trainer.fit(Student(), DataLoader(train, batch_size=16, shuffle=True), ckpt_path=newest)


def log_file(folder: Path, group: int) -> Path:
    """Log of a group."""
    return folder / f"group_{group}.jsonl"


def _strategy(asked: argparse.Namespace) -> lh.HierarchicalStrategy:
    settings: dict[str, Any] = {
        "block_sync": lh.DiLoCo(block_size=asked.block_size),
        "timeout": _LIMIT,
    }
    if not asked.lighthouse:
        return lh.HierarchicalStrategy(group_size=1, **settings)
    membership = lh.TorchFT(
        asked.lighthouse,
        group=asked.group,
        groups=asked.groups,
        join_timeout_s=asked.join_timeout_s,
    )
    return lh.HierarchicalStrategy(membership=membership, **settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lighthouse", help="of groups that come and go")
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--join_timeout_s", type=float, default=20.0)
    parser.add_argument("--block_size", type=int, default=20)
    parser.add_argument("--step_s", type=float, default=0.05, help="least seconds of a step")
    parser.add_argument("--steps", type=int, default=-1, help="last step")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
