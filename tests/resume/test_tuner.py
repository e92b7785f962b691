"""The Tuner trains, and then puts everything back with a checkpoint of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateFinder
from lightning.pytorch.tuner import Tuner

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import ROWS, DropoutNet, shuffled
from tests.trainer.fitting import BMUF, BMUF_GTC, make_trainer, this_rank, weights

TWO_TIERS = partial(BMUF_GTC, group_size=1, warmup_steps=3)
RATE = 0.03


class _Tuned(DropoutNet):
    """Notes the state in which training starts."""

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
                    "shown": session.synchroniser.evaluation.active,
                    "warming": session.reduction.warming,
                    "momentum": len(self.trainer.optimizers[0].state),
                    "random": torch.get_rng_state(),
                }
            )

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def _tune(strategy: Any, folder: Path, *, as_callback: bool) -> dict[str, Any]:
    torch.manual_seed(this_rank())
    model = _Tuned()
    search: dict[str, Any] = {"min_lr": RATE, "max_lr": 0.1, "early_stop_threshold": None}
    callbacks: list[Callback] = []
    if as_callback:
        callbacks.append(LearningRateFinder(num_training_steps=8, **search))
    trainer = make_trainer(strategy(), callbacks=callbacks, max_epochs=2, default_root_dir=folder)
    found = []
    if not as_callback:
        finder = Tuner(trainer).lr_find(model, shuffled(5), num_training=8, **search)
        assert finder is not None
        found = finder.results["lr"]
    trainer.fit(model, shuffled(5))
    return {
        "starts": model.starts,
        "steps": trainer.global_step,
        "end": weights(model),
        "rates": found,
        "left": [str(path) for path in folder.iterdir()],
    }


@pytest.mark.parametrize(("strategy", "as_callback"), [(BMUF, False), (TWO_TIERS, True)])
def test_learning_rate_finder(strategy: Any, as_callback: bool, tmp_path: Path) -> None:
    """The training after it starts as the search did: counts, residuals, blocks and warm-up."""
    results = run_ranks(_tune, 2, strategy, tmp_path, as_callback=as_callback)
    for own in results:
        searching, training = own["starts"][0], own["starts"][-1]
        assert len(own["starts"]) == 2
        for name in ("steps", "residuals", "blocks", "shown", "warming", "momentum"):
            assert training[name] == searching[name], name
        assert torch.equal(training["weights"], searching["weights"])
        assert own["steps"] == 10
        assert own["left"] == []
        assert torch.equal(own["end"], results[0]["end"])
        if as_callback:
            assert torch.equal(training["random"], searching["random"])
        else:
            assert own["rates"] == results[0]["rates"]
            assert len(own["rates"]) == 8


class _Counting(_Tuned):
    """Notes the samples that each step counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        strategy: Any = self.trainer.strategy
        self.counted += strategy._session.worker.samples


def _search_by_samples(folder: Path) -> list[float]:
    sync = lh.BMUF(block_size=4, weighting="samples")
    strategy = lh.HierarchicalStrategy(group_size=1, block_sync=sync, warmup_steps=0)
    model, trainer = _Counting(), make_trainer(strategy, default_root_dir=folder)
    search: dict[str, Any] = {"min_lr": RATE, "max_lr": 0.1, "early_stop_threshold": None}
    Tuner(trainer).lr_find(model, shuffled(5), num_training=8, **search)
    return model.counted


def test_learning_rate_finder_counts_samples(tmp_path: Path) -> None:
    """The search has no callbacks but that of Lightning."""
    assert run_ranks(_search_by_samples, 2, tmp_path) == [[ROWS] * 8] * 2
