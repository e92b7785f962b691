"""Tests that a resumed run applies other settings of GTC, and has only the residuals it needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning_hier as lh
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
