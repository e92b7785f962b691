"""Tests checkpoints of modules whose buffers are created in training or written by hooks."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from tests.ranks import run_ranks
from tests.resume.runs import differences
from tests.trainer.fitting import BMUF, Net, fit_on_ranks, loader, make_trainer
from tests.trainer.test_written_by_hooks import SYNCHRONOUS, Writing


class _Masked(Net):
    """Creates a mask in its first forward pass, with a length that depends on the rank."""

    mask: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None, persistent=False)

    def forward(self, batch: Tensor) -> Tensor:
        if self.mask is None:
            ones = torch.ones(3 + int(os.environ["RANK"]), dtype=torch.bool)
            self.register_buffer("mask", ones, persistent=False)
        return super().forward(batch)


def _train(path: Path) -> tuple[list[int], int]:
    lengths = []
    for epochs, resumed in ((1, None), (2, path)):
        model = _Masked()
        trainer = make_trainer(BMUF(block_size=3), max_epochs=epochs)
        trainer.fit(model, loader(4), loader(1), ckpt_path=resumed)
        assert model.mask is not None
        assert bool(model.mask.all())
        lengths.append(len(model.mask))
        trainer.save_checkpoint(path)
    return lengths, trainer.global_step


def test_masks_of_different_lengths(tmp_path: Path) -> None:
    assert run_ranks(_train, 2, tmp_path / "a.ckpt") == [([3 + rank] * 2, 8) for rank in range(2)]


def test_run_resumes_exactly(tmp_path: Path) -> None:
    """The save is at the end of the first epoch, where the hooks write."""
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    saves = {"callbacks": [saving], "enable_checkpointing": True}
    whole = fit_on_ranks(2, SYNCHRONOUS["nesterov"], Writing, max_epochs=3, **saves)
    path = tmp_path / "epoch=0.ckpt"
    resumed = fit_on_ranks(2, SYNCHRONOUS["nesterov"], Writing, max_epochs=3, ckpt_path=path)
    for full, again in zip(whole, resumed, strict=True):
        later = full.notes[len(full.notes) // 3 :]
        assert len(later) == len(again.notes) > 0
        for (held, weight), (held_again, weight_again) in zip(later, again.notes, strict=True):
            assert held_again == held
            assert held[2] > 0 and held[3] == 3.0 * held[2]
            assert torch.equal(weight_again, weight)
        assert differences(full.state, again.state) == []
