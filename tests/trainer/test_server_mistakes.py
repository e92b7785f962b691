"""Tests that mistakes with parameter servers are one clear error on every rank.

Most of them are errors before training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder

import lightning_hier as lh
from tests.ranks import rank_outcomes
from tests.trainer.fitting import Net, Untrained, fit, loader, make_trainer, this_rank
from tests.trainer.mistakes import Mistakes, check_mistakes


def _fit(strategy: Any, model: Any = None, **settings: Any) -> None:
    fit(strategy, 6, model or Untrained(), **settings)


class _Makes(Untrained):
    """Its optimizers come from a function."""

    def __init__(self, optimizers: Callable[[Net], Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.make = optimizers

    def configure_optimizers(self) -> Any:
        return self.make(self)


def _shared_parameters() -> None:
    def both(net: Net) -> Any:
        one, other = list(net.parameters()), list(net.layers[2].parameters())
        return torch.optim.SGD(one, lr=0.1), torch.optim.SGD(other, lr=0.1)

    _fit("psp", _Makes(both, by_hand=True))


def _batches_differ() -> None:
    trainer = make_trainer("psp", use_distributed_sampler=False)
    trainer.fit(Untrained(), loader(3 if this_rank() == 1 else 5))


MISTAKES: Mistakes = {
    "too_many_pushes": (
        lambda: _fit(lh.PSPStrategy(min_pushes=5)),
        r"min_pushes must be at most the number of workers, 4, got 5",
    ),
    "settings_differ": (
        lambda: _fit(lh.PSPStrategy(min_pulled=0.5 if this_rank() else 1.0)),
        r"min_pulled: 1.0 on rank 0; 0.5 .*1, 2, 3",
    ),
    "group_size": (
        lambda: _fit(lh.TwoStageASGDStrategy(group_size=3)),
        r"group_size=3 with 4 ranks; sizes that do: 1, 2, 4",
    ),
    "lbfgs": (
        lambda: _fit("psp", Untrained(optimizer="LBFGS", max_iter=2)),
        r"LBFGS calls its closure several times",
    ),
    "shared_parameters": (_shared_parameters, r"two optimizers share a parameter"),
    "sync_batchnorm": (
        lambda: _fit("two_stage_asgd", sync_batchnorm=True),
        r"sync_batchnorm=True can't be combined with parameter servers",
    ),
    "learning_rate_finder": (
        lambda: _fit("psp", callbacks=[LearningRateFinder()]),
        r"LearningRateFinder can't be .*Tuner\(trainer\).lr_find",
    ),
    "batches_differ": (
        _batches_differ,
        r"numbers of training batches: 20 on ranks 0, 2, 3; 12 on rank 1",
    ),
}


def test_one_clear_error_on_every_rank() -> None:
    check_mistakes(__name__)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lh.PSPStrategy(min_pushes=0), "min_pushes must be .*got 0"),
        (lambda: lh.PSPStrategy(min_pushes="some"), "min_pushes must be .*got 'some'"),
        (lambda: lh.PSPStrategy(min_pulled=0.0), "min_pulled .*got 0.0"),
        (lambda: lh.PSPStrategy(push_timeout_s=-1), "push_timeout_s .*got -1"),
        (lambda: lh.PSPStrategy(pull_timeout_s=float("inf")), "pull_timeout_s .*got inf"),
        (lambda: lh.TwoStageASGDStrategy(push_period=0), "push_period .*got 0"),
        (lambda: lh.TwoStageASGDStrategy(refresh_period=0), "refresh_period .*got 0"),
        (lambda: lh.TwoStageASGDStrategy(group_size=0), "group_size .*got 0"),
        (lambda: lh.PSPStrategy(ddp_comm_hook=print), "ddp_comm_hook can't be set"),
    ],
)
def test_values_out_of_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class _AddsGroup(Net):
    """Adds a parameter group in training, as BaseFinetuning does."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            parameters = list(self.layers[0].parameters())
            self.optimizers(use_pl_optimizer=False).add_param_group({"params": parameters})


def test_parameter_that_is_unfrozen_in_training_is_an_error_and_not_lost() -> None:
    for outcome in rank_outcomes(fit, 2, "two_stage_asgd", 6, _AddsGroup()):
        assert "frozen or in no optimizer when training started" in str(outcome.error)
