"""A run goes on with the buffers and frozen parameters that hooks had written when it was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.resume.runs import differences
from tests.trainer.fitting import fit_on_ranks
from tests.trainer.test_written_by_hooks import SYNCHRONOUS, Writing


@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_run_goes_on_exactly(name: str, tmp_path: Path) -> None:
    """A whole run, and one that goes on from its first epoch's end, where the hooks write."""
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    saves = {"callbacks": [saving], "enable_checkpointing": True}
    whole = fit_on_ranks(2, SYNCHRONOUS[name], Writing, max_epochs=3, **saves)
    path = tmp_path / "epoch=0.ckpt"
    resumed = fit_on_ranks(2, SYNCHRONOUS[name], Writing, max_epochs=3, ckpt_path=path)
    for own, again in zip(whole, resumed, strict=True):
        later = own.notes[len(own.notes) // 3 :]
        assert len(later) == len(again.notes) > 0
        for (held, weight), (held_again, weight_again) in zip(later, again.notes, strict=True):
            assert held_again == held
            assert held[2] > 0 and held[3] == 3.0 * held[2]
            assert torch.equal(weight_again, weight)
        assert differences(own.state, again.state) == []
