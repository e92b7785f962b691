"""Runs under parameter servers go on from a checkpoint that is saved after ``fit``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights


def _whole_and_resumed(
    strategy: Any, warmup_steps: int, path: str, make: Callable[[], Net] = Net
) -> tuple[Tensor, Tensor]:
    ends = []
    for epochs, resumed in ((2, None), (1, None), (2, path)):
        model = make()
        trainer = make_trainer(strategy(warmup_steps=warmup_steps), max_epochs=epochs)
        trainer.fit(model, loader(6), ckpt_path=resumed, weights_only=True)
        if epochs == 1:
            trainer.save_checkpoint(path)
        ends.append(weights(model))
    return ends[0], ends[2]


@pytest.mark.parametrize("warmup_steps", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [
        (2, lh.PSPStrategy),
        pytest.param(
            1,
            partial(lh.TwoStageASGDStrategy, push_period=1, double_buffering=False),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_momentum_goes_on_and_the_warm_up_does_not_begin_again(
    ranks: int, strategy: Any, warmup_steps: int, tmp_path: Any
) -> None:
    """An epoch has six steps, so the warm-up ends before the save, or after it.

    These servers wait for all, so the run is the one that was not stopped.
    """
    path = str(tmp_path / "after.ckpt")
    for whole, resumed in run_ranks(_whole_and_resumed, ranks, strategy, warmup_steps, path):
        assert torch.isfinite(whole).all()
        torch.testing.assert_close(resumed, whole, rtol=1e-6, atol=1e-7)


class _TwoPaces(Net):
    """The second optimizer makes a step in every third batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layers[at].parameters(), lr=0.05) for at in (0, 2)]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        often, seldom = self.optimizers()
        self.zero_grad()
        self.manual_backward(self.loss(batch))
        often.step()
        if batch_idx % 3 == 0:
            seldom.step()


def _pushes_of_resumed(strategy: Any, path: str) -> list[float]:
    """In an epoch with six steps of one optimizer and two of the other, after one like it."""
    for epochs, resumed in ((1, None), (2, path)):
        trainer = make_trainer(strategy(warmup_steps=4), max_epochs=epochs)
        trainer.fit(_TwoPaces(), loader(6), ckpt_path=resumed, weights_only=True)
        trainer.save_checkpoint(path)
    counted = trainer.strategy.metrics()
    return [counted[f"hier/two_stage/{index}/node/pushes"] for index in range(2)]


def test_several_optimizers_go_on_as_if_they_had_not_stopped(tmp_path: Any) -> None:
    path = str(tmp_path / "after.ckpt")
    for whole, resumed in run_ranks(_whole_and_resumed, 2, lh.PSPStrategy, 4, path, _TwoPaces):
        torch.testing.assert_close(resumed, whole, rtol=1e-6, atol=1e-7)


def test_optimizers_leave_out_what_each_has_made_of_the_warm_up(tmp_path: Any) -> None:
    """The first has left it; the second has two steps to go, and a push is made after each."""
    strategy = partial(lh.TwoStageASGDStrategy, push_period=100)
    assert run_ranks(_pushes_of_resumed, 1, strategy, str(tmp_path / "c")) == [[1.0, 2.0]]


class _Saves(Net):
    """Saves as training starts, when nothing has been trained yet."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_train_start(self) -> None:
        self.trainer.save_checkpoint(self.path)


def _saved_again(strategy: Any, folder: str) -> list[Any]:
    found = []
    for epochs, resumed, saved in ((1, None, "first"), (1, "first", "second"), (2, "first", None)):
        model = Net() if saved else _Saves(f"{folder}/third")
        trainer = make_trainer(strategy(), max_epochs=epochs)
        path = resumed and f"{folder}/{resumed}"
        trainer.fit(model, loader(6), ckpt_path=path, weights_only=True)
        if saved:
            trainer.save_checkpoint(f"{folder}/{saved}")
    for name in ("first", "second", "third"):
        checkpoint = torch.load(f"{folder}/{name}", weights_only=True)
        found.append((checkpoint["state_dict"], checkpoint["optimizer_states"]))
    return found


@pytest.mark.parametrize("strategy", [lh.PSPStrategy, lh.TwoStageASGDStrategy])
def test_optimizer_state_is_saved_again_where_nothing_was_trained(
    strategy: Any, tmp_path: Any
) -> None:
    """A run that had come to its end is resumed and saved; one that goes on, as it starts."""
    [(first, *others)] = run_ranks(_saved_again, 1, strategy, str(tmp_path))
    assert len(first[1][0]["state"]) == 4 and first[1][0]["state"][0]["momentum_buffer"].any()
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
