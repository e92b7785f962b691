"""Tests that training after the learning-rate finder starts from the same state as without it.

The Tuner restores that state from a checkpoint.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import LearningRateFinder

from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, shuffled
from tests.trainer.fitting import BMUF_GTC, make_trainer, this_rank, weights

TWO_TIERS = partial(BMUF_GTC, group_size=1, warmup_steps=3)
RATE = 0.03


class _Tuned(DropoutNet):
    """Notes the state at the start of training."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = RATE
        self.starts: list[dict[str, Any]] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step == 0:
            strategy: Any = self.trainer.strategy
            session = strategy._session
            self.starts.append(
                {
                    "weights": weights(self),
                    "steps": [vars(count).copy() for count in session.worker.steps],
                    "residuals": len(session.worker.memory.tensors),
                    "blocks": session.synchroniser.blocks,
                    "evaluating": session.synchroniser.evaluation.active,
                    "warming": session.reduction.warming,
                    "momentum": len(self.trainer.optimizers[0].state),
                    "random": torch.get_rng_state(),
                }
            )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def _tune(folder: Path, steps: int = 8) -> dict[str, Any]:
    torch.manual_seed(this_rank())
    model = _Tuned()
    search: dict[str, Any] = {"min_lr": RATE, "max_lr": 0.1, "early_stop_threshold": None}
    finder = LearningRateFinder(num_training_steps=steps, **search)
    trainer = make_trainer(TWO_TIERS(), callbacks=[finder], max_epochs=2, default_root_dir=folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, shuffled(5))
    return {
        "warned": [str(warning.message) for warning in caught],
        "starts": model.starts,
        "steps": trainer.global_step,
        "end": weights(model),
        "left": [str(path) for path in folder.iterdir()],
    }


def test_learning_rate_finder(tmp_path: Path) -> None:
    """Training starts with the counts, residuals, blocks and warm-up of the search's start."""
    results = run_ranks(_tune, 2, tmp_path)
    for result in results:
        searching, training = result["starts"][0], result["starts"][-1]
        assert len(result["starts"]) == 2
        for name in ("steps", "residuals", "blocks", "evaluating", "warming", "momentum"):
            assert training[name] == searching[name], name
        assert torch.equal(training["weights"], searching["weights"])
        assert result["steps"] == 10
        assert result["left"] == []
        assert torch.equal(result["end"], results[0]["end"])
        assert torch.equal(training["random"], searching["random"])


def test_search_that_ends_within_the_warm_up_is_no_run_without_blocks(tmp_path: Path) -> None:
    for result in run_ranks(_tune, 2, tmp_path, steps=1):
        assert not [text for text in result["warned"] if "within its warm-up" in text]
