"""Tests the progress lines: their text, the time between them, and that only rank 0 writes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_hier.callbacks.progress_lines import ProgressLines
from tests.ranks import run_ranks


class Logging(BoringModel):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        self.log("loss", torch.tensor(0.123456), prog_bar=True)
        self.log("time", 1.0, prog_bar=False)
        return super().training_step(batch, batch_idx)


def trainer(folder: Path, lines: ProgressLines, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        limit_train_batches=4,
        limit_val_batches=2,
        limit_test_batches=3,
        num_sanity_val_steps=0,
        callbacks=[lines],
        **{"max_epochs": 2, **options},
    )


def test_a_line_for_every_batch_without_a_minimum_time(tmp_path: Path) -> None:
    lines: list[str] = []
    run = trainer(tmp_path, ProgressLines(0.0, lines.append))
    run.fit(Logging())
    epoch = [f"batch {n} of 4 ({25 * n}%)" for n in (1, 2, 3, 4)]
    validation = [f"Validation: batch {n} of 2 ({50 * n}%)" for n in (1, 2)]
    places = ["Training: 4 batches in an epoch"]
    for number in ("1/2", "2/2"):
        places += [f"Epoch {number}, {batch}" for batch in epoch]
        places += [*validation, f"Epoch {number} done"]
    places.append("Training: 8 steps done")
    assert [line.partition(", loss")[0] for line in lines] == places
    assert lines[1] == "Epoch 1/2, batch 1 of 4 (25%), loss 0.1235"
    lines.clear()
    run.test(BoringModel(), verbose=False)
    tested = [f"Testing: batch {n} of 3" for n in (1, 2, 3)]
    assert [line.partition(" (")[0] for line in lines] == ["Testing", *tested]


def test_max_steps_within_an_epoch_sets_its_number_of_batches(
    tmp_path: Path,
) -> None:
    written: list[str] = []
    lines = ProgressLines(0.0, written.append)
    trainer(tmp_path, lines, max_epochs=-1, max_steps=3).fit(Logging())
    trained = [line for line in written if line.startswith("Epoch 1, batch")]
    assert [line.partition(", loss")[0] for line in trained] == [
        f"Epoch 1, batch {n} of 3 ({share}%)" for n, share in ((1, 33), (2, 67), (3, 100))
    ]
    written.clear()
    # Two batches make a step, and Lightning reports the number of steps as that of batches.
    accumulating = {"max_epochs": -1, "max_steps": 2, "accumulate_grad_batches": 2}
    trainer(tmp_path, lines, **accumulating).fit(Logging())
    trained = [line for line in written if line.startswith("Epoch 1, batch")]
    assert [line.partition(", loss")[0] for line in trained] == [
        "Epoch 1, batch 1 of 2 (50%)",
        "Epoch 1, batch 2 of 2 (100%)",
        "Epoch 1, batch 3",
        "Epoch 1, batch 4",
    ]


def test_lines_have_a_minimum_time_between_them(tmp_path: Path) -> None:
    written: list[str] = []
    ticks: Iterator[int] = count()
    # This clock advances by a second with every reading.
    lines = ProgressLines(5.0, written.append, clock=lambda: float(next(ticks)))
    trainer(tmp_path, lines).fit(Logging())
    assert written[0].startswith("Training: 4 batches") and written[-1].startswith(
        "Training: 8 steps"
    )
    assert len(written) == 4
    with pytest.raises(ValueError, match="every_s must be at least 0, got -1"):
        ProgressLines(-1.0)


def lines_of_this_rank(folder: str) -> int:
    lines: list[str] = []
    trainer(Path(folder), ProgressLines(0.0, lines.append), devices=2, strategy="ddp").fit(
        Logging()
    )
    return len(lines)


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    first, second = run_ranks(lines_of_this_rank, 2, str(tmp_path))
    assert first > 8 and second == 0
