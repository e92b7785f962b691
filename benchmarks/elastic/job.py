"""Training script of an elastic group, or of a rank of the job that is restarted as a whole.

    python -m benchmarks.elastic.job FOLDER --lighthouse http://127.0.0.1:29510 --group 0
    torchrun ... -m benchmarks.elastic.job FOLDER

Both use the same strategy with groups of one rank. The job under torchrun saves a checkpoint at the
end of every block, and resumes from the newest one in ``FOLDER``.
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
from examples.quiet import quiet_trainer

_LIMIT = timedelta(minutes=2)


def main() -> None:
    """Train until the process is killed, or to the given step."""
    options = _parser().parse_args()
    folder: Path = options.folder
    pl.seed_everything(options.seed, verbose=False)
    torch.set_num_threads(1)
    train, valid = rows()
    group = options.group if options.lighthouse else int(os.environ["RANK"])
    log = StepLog(log_file(folder, group), block_size=options.block_size, validate=ValidLoss(valid))
    checkpoints = ModelCheckpoint(folder, every_n_train_steps=options.block_size)
    trainer = quiet_trainer(
        _strategy(options),
        devices=1 if options.lighthouse else int(os.environ["LOCAL_WORLD_SIZE"]),
        callbacks=[Pace(options.step_s), log, *([] if options.lighthouse else [checkpoints])],
        max_steps=options.steps,
        max_epochs=-1,
        enable_checkpointing=not options.lighthouse,
        use_distributed_sampler=True,
    )
    newest = None if options.lighthouse else lh.newest_checkpoint(folder)
    trainer.fit(Student(), DataLoader(train, batch_size=16, shuffle=True), ckpt_path=newest)


def log_file(folder: Path, group: int) -> Path:
    """Return the path of the log of a group."""
    return folder / f"group_{group}.jsonl"


def _strategy(options: argparse.Namespace) -> lh.HierarchicalStrategy:
    settings: dict[str, Any] = {
        "block_sync": lh.DiLoCo(
            block_size=options.block_size, fragments=options.fragments, overlap=options.overlap
        ),
        "timeout": _LIMIT,
    }
    if not options.lighthouse:
        return lh.HierarchicalStrategy(group_size=1, **settings)
    membership = lh.TorchFT(
        options.lighthouse,
        group=options.group,
        groups=options.groups,
        join_timeout_s=options.join_timeout_s,
    )
    return lh.HierarchicalStrategy(membership=membership, **settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lighthouse", help="address of the Lighthouse of elastic groups")
    parser.add_argument("--group", type=int, default=0)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--join_timeout_s", type=float, default=20.0)
    parser.add_argument("--block_size", type=int, default=20)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--overlap", type=int, default=0)
    parser.add_argument("--step_s", type=float, default=0.05, help="least seconds of a step")
    parser.add_argument("--steps", type=int, default=-1, help="last step")
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
