"""Tests that a resumed run applies other settings of GTC, and has only the residuals it needs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import lightning_hier as lh
from lightning_hier.comm.worker import GradientMemory
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import make_trainer

BEFORE = partial(lh.GTCStrategy, threshold=0.02, dense_below=10, warmup_steps=0)


def _memories(strategy: Any) -> dict[int, tuple[float, float | None]]:
    """Sum of the residual and threshold of each tensor, by its number of elements."""
    tensors = strategy._ended.worker.memory.tensors
    return {
        memory.residual.numel(): (float(memory.residual.sum()), memory.threshold)
        for memory in tensors.values()
    }


def _train(path: Path) -> list[Any]:
    memories = []
    for epochs, strategy in ((1, BEFORE()), (2, BEFORE(threshold=0.3, dense_below=20))):
        trainer = make_trainer(strategy, max_epochs=epochs)
        trainer.fit(DropoutNet(), shuffled(5), ckpt_path=path if epochs == 2 else None)
        trainer.save_checkpoint(path)
        memories.append(_memories(trainer.strategy))
    return memories


def test_other_settings_apply(tmp_path: Path) -> None:
    """Tensors have 32, 16, 8 and 2 elements. The second run sends the tensor of 16 exactly."""
    for before, after in run_ranks(_train, 2, tmp_path / "a.ckpt"):
        assert set(before) == {32, 16}
        assert before[16][0] != 0.0
        assert {threshold for _, threshold in before.values()} == {0.02}
        assert set(after) == {32}
        assert after[32][1] == 0.3


def test_residuals_take_the_dtype_of_the_parameter() -> None:
    parameter = Parameter(torch.zeros(8))
    saved = {"residuals": {"w": torch.ones(8, dtype=torch.bfloat16)}, "thresholds": {"w": 0.5}}
    memory = GradientMemory()
    memory.load(saved, {"w": parameter})
    assert memory.tensors[parameter].residual.dtype == torch.float32


@pytest.mark.parametrize("fixed", [None, 0.25])
def test_fixed_threshold_applies_and_an_automatic_one_is_kept(fixed: float | None) -> None:
    parameter = Parameter(torch.zeros(8))
    memory = GradientMemory()
    memory.of(parameter, torch.zeros(8), 0.5)
    threshold = memory.of(parameter, torch.zeros(8), fixed).threshold
    assert threshold is not None and math.isclose(threshold, fixed or 0.5)
