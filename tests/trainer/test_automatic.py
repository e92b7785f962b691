"""Tests settings of "auto" through the Trainer: block sizes, warm-up, betas, and resumed runs."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    Net,
    fits_on_ranks,
    fitted,
    loader,
    make_trainer,
    steps_with_equal_models,
)


class _Adam(Net):
    """Notes the first beta in each step. After the step, the group has the user's beta again."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        optimizer.register_step_pre_hook(
            lambda stepping, *_: self.notes.append(stepping.param_groups[0]["betas"][0])
        )
        return optimizer

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        optimizer: Any = self.optimizers()
        assert optimizer.param_groups[0]["betas"][0] == 0.9


def _with_log() -> tuple[Any, list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return fitted("bmuf_adam", _Adam, 60), [line for line in lines if "'auto'" in line]


def test_defaults_of_a_run_of_known_length() -> None:
    """A run of 60 steps has 6 warm-up steps, then blocks of 3 with a lower first beta of Adam."""
    results = run_ranks(_with_log, 2)
    equal = steps_with_equal_models([result.seen for result, _ in results])
    assert equal == [*range(1, 7), *range(9, 61, 3)]
    for result, _ in results:
        assert result.notes == [0.9] * 6 + [0.5] * 54
    numbers, beta = results[0][1]
    assert numbers == (
        "warmup_steps='auto' is 6, block_size='auto' is 3, block_momentum='auto' is 0, "
        "moments_every='auto' is 4, because the run has 60 steps and 2 groups. The learning rate "
        "to pass is that of DDP."
    )
    assert "AdamW uses a first beta of 0.5 instead of 0.9" in beta


_BMUF_GTC = partial(lh.BMUFGTCStrategy, group_size=1, dense_below=0)


def test_automatic_values_train_as_explicit_values_to_the_last_bit() -> None:
    explicit = partial(_BMUF_GTC, density=0.1, block_size=2, warmup_steps=4)
    runs = fits_on_ranks(2, *(partial(fitted, own, Net, 40) for own in (_BMUF_GTC, explicit)))
    for first, other in zip(*runs, strict=True):
        assert torch.equal(first.weights, other.weights)


class _Endless(IterableDataset[list[Tensor]]):
    def __iter__(self) -> Any:
        return iter(loader(4).dataset)


def _of_unknown_length() -> tuple[Any, Any, list[str]]:
    strategy = lh.ModelAveragingStrategy()
    trainer = make_trainer(strategy, limit_train_batches=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(Net(), DataLoader(_Endless(), batch_size=2))
    said = [str(w.message) for w in caught if "warm-up" in str(w.message)]
    return strategy.warmup_steps, strategy.block_sync.block_size, said


def test_run_of_unknown_length_that_ends_in_its_warm_up_is_warned_of() -> None:
    first, other = run_ranks(_of_unknown_length, 2)
    assert first[:2] == other[:2] == (50, 50)
    (said,) = first[2]
    assert "ended after 8 steps, within its warm-up of 50: it never synchronised a block" in said
    assert not other[2]


def _longer(folder: Path) -> list[Any]:
    """A run of 40 steps, and one that resumes from its middle up to step 80."""
    results: list[Any] = []
    for epochs, path in ((2, None), (4, folder / "epoch=0-step=20.ckpt")):
        strategy = lh.BMUFStrategy()
        saves = ModelCheckpoint(folder, save_top_k=-1)
        trainer = make_trainer(
            strategy, max_epochs=epochs, callbacks=[saves], enable_checkpointing=True
        )
        trainer.fit(Net(), loader(20), ckpt_path=path)
        results.append((strategy.warmup_steps, strategy.block_sync, trainer.global_step))
    return results


def test_run_that_is_resumed_for_longer_keeps_its_numbers(tmp_path: Path) -> None:
    for first, resumed in run_ranks(_longer, 2, tmp_path):
        assert first == (4, lh.BMUF(block_size=2, block_momentum=0.0), 40)
        assert resumed == (4, lh.BMUF(block_size=2, block_momentum=0.0), 80)


def _fits_twice() -> list[Any]:
    warmup_steps = []
    for batches in (20, 40):
        trainer = make_trainer(lh.BMUFStrategy())
        for epochs in (1, 2):
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(Net(), loader(batches))
            warmup_steps.append(trainer.strategy.warmup_steps)
    return warmup_steps


def test_each_fit_of_one_strategy_chooses_automatic_values_again() -> None:
    assert run_ranks(_fits_twice, 2) == [[2, 4, 4, 8]] * 2
