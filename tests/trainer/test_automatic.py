"""Settings that are "auto", through the Trainer: which steps, which betas, and on a resume."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights


class _Adam(Net):
    """Notes with which first beta each step was made, and which its groups hold afterwards."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        self.betas: list[float] = []
        optimizer.register_step_pre_hook(
            lambda own, *_: self.betas.append(own.param_groups[0]["betas"][0])
        )
        return optimizer

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        optimizer: Any = self.optimizers()
        assert optimizer.param_groups[0]["betas"][0] == 0.9


def _log_of(strategy: Any, model: Net, batches: int) -> list[str]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    fit(strategy, batches, model)
    logger.removeHandler(handler)
    return [line for line in said if "'auto'" in line]


def _bmuf_adam() -> tuple[list[Tensor], list[float], list[str]]:
    model = _Adam()
    said = _log_of("bmuf_adam", model, 60)
    return model.seen, model.betas, said


def test_defaults_of_a_run_of_known_length() -> None:
    """60 steps: 6 of warm-up, then blocks of 3, in which Adam's first beta is lower."""
    results = run_ranks(_bmuf_adam, 2)
    equal = [
        step + 1
        for step, models in enumerate(zip(*(seen for seen, _, _ in results), strict=True))
        if torch.equal(models[0], models[1])
    ]
    assert equal == [*range(1, 7), *range(9, 61, 3)]
    for _, betas, _ in results:
        assert betas == [0.9] * 6 + [0.5] * 54
    said = results[0][2]
    assert said[0] == (
        "warmup_steps='auto' is 6, block_size='auto' is 3, since the run has 60 steps and 2 groups."
    )
    assert "AdamW steps with a first beta of 0.5 in place of 0.9" in said[1]
    assert len(said) == 2


def _pair(name: str) -> tuple[Tensor, Tensor]:
    made: dict[str, Any] = {
        "bmuf_gtc": (
            lh.BMUFGTCStrategy(group_size=1, dense_below=0),
            lh.BMUFGTCStrategy(
                group_size=1, dense_below=0, density=0.1, block_size=2, warmup_steps=4
            ),
        ),
        "gtc": (
            lh.GTCStrategy(dense_below=0),
            lh.GTCStrategy(dense_below=0, density=0.1, warmup_steps=4),
        ),
        "one group": (
            lh.HierarchicalStrategy(group_size="world", block_sync=lh.BMUF()),
            lh.HierarchicalStrategy(
                group_size="world", block_sync=lh.BMUF(block_size=2), warmup_steps=0
            ),
        ),
    }
    automatic, explicit = Net(), Net()
    fit(made[name][0], 40, automatic)
    fit(made[name][1], 40, explicit)
    return weights(automatic), weights(explicit)


@pytest.mark.parametrize("name", ["bmuf_gtc", "gtc", "one group"])
def test_automatic_numbers_are_those_set_to_the_last_bit(name: str) -> None:
    for automatic, explicit in run_ranks(_pair, 2, name):
        assert torch.equal(automatic, explicit)


def _warned(name: str) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(name, 4, _Adam())
    return [str(own.message) for own in found if "Adam" in str(own.message)]


def test_what_does_not_suit_adam_is_said_once_and_before_training() -> None:
    for name, what in (("gtc", "GTC with AdamW"), ("model_averaging", "ModelAveraging with AdamW")):
        first, other = run_ranks(_warned, 2, name)
        assert len(first) == 1 and first[0].startswith(what)
        assert other == []
    assert run_ranks(_warned, 2, "bmuf_adam") == [[], []]


class _Endless(IterableDataset[list[Tensor]]):
    def __iter__(self) -> Any:
        return iter(loader(4).dataset)


def _of_unknown_length() -> tuple[int, Any]:
    strategy = lh.ModelAveragingStrategy()
    trainer = make_trainer(strategy, limit_train_batches=None)
    trainer.fit(Net(), DataLoader(_Endless(), batch_size=2))
    return strategy.warmup_steps, strategy.block_sync


def test_unknown_length_counts_as_long() -> None:
    for warmup_steps, block_sync in run_ranks(_of_unknown_length, 2):
        assert (warmup_steps, block_sync.block_size) == (500, 50)


def _longer(folder: Path) -> list[Any]:
    """A run of 40 steps, and what goes on from its middle for 80 more."""
    found = []
    for epochs, path in ((2, None), (4, folder / "epoch=0-step=20.ckpt")):
        strategy = lh.BMUFStrategy()
        saves = ModelCheckpoint(folder, save_top_k=-1)
        trainer = make_trainer(
            strategy, max_epochs=epochs, callbacks=[saves], enable_checkpointing=True
        )
        trainer.fit(Net(), loader(20), ckpt_path=path)
        found.append((strategy.warmup_steps, strategy.block_sync, trainer.global_step))
    fit(strategy_again := lh.BMUFStrategy(), 100)
    return [*found, strategy_again.warmup_steps]


def test_run_that_is_resumed_for_longer_keeps_its_numbers(tmp_path: Path) -> None:
    for first, resumed, another in run_ranks(_longer, 2, tmp_path):
        assert first == (4, lh.BMUF(block_size=2), 40)
        assert resumed == (4, lh.BMUF(block_size=2), 80)
        assert another == 10


def _fits_twice() -> list[int]:
    found = []
    for batches in (20, 60):
        strategy = lh.BMUFStrategy()
        trainer = make_trainer(strategy)
        trainer.fit(Net(), loader(batches))
        found.append(strategy.warmup_steps)
        trainer.fit_loop.max_epochs = 2
        trainer.fit(Net(), loader(batches))
        found.append(strategy.warmup_steps)
    return found


def test_each_fit_of_one_strategy_chooses_anew() -> None:
    assert run_ranks(_fits_twice, 2) == [[2, 4, 6, 12]] * 2


def _by_hand() -> int:
    model = _ByHand()
    strategy = lh.HierarchicalStrategy(group_size=1, block_sync=lh.BMUF(), virtual_workers=2)
    fit(strategy, 40, model)
    return strategy.warmup_steps


class _ByHand(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()
        return self.loss(batch)


def test_no_warm_up_where_it_can_not_be_had() -> None:
    assert run_ranks(_by_hand, 1) == [0]
