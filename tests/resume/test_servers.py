"""Tests that runs under parameter servers resume from checkpoints saved in `fit` or after it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    Fitted,
    Net,
    TwoOptimizers,
    fit_on_ranks,
    fitted,
    loader,
    make_trainer,
)

PSP = lh.PSPStrategy
# A node waits for every update.
TWO_STAGE = partial(lh.TwoStageASGDStrategy, push_period=1, double_buffering=False)


def _whole_and_resumed(strategy: Any, path: Path, model: Any) -> list[Fitted]:
    """Two epochs in one run, and in two runs with a save after the first ``fit``."""
    runs: list[dict[str, Any]] = [
        {"max_epochs": 2},
        {"save": path},
        {"max_epochs": 2, "ckpt_path": path},
    ]
    whole, _, resumed = [fitted(strategy, model, weights_only=True, **run) for run in runs]
    return [whole, resumed]


class _Scheduled(Net):
    """Trains in float64, with a scheduler that changes the learning rate at every step."""

    def __init__(self) -> None:
        super().__init__(lr=0.02)
        self.double()

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.mark.parametrize(("ranks", "strategy"), [(3, PSP), (1, TWO_STAGE)])
def test_run_resumes_from_the_state_of_servers_at_the_end_of_an_epoch(
    ranks: int, strategy: Any, tmp_path: Path
) -> None:
    saves = {"callbacks": [ModelCheckpoint(tmp_path, save_top_k=-1)], "enable_checkpointing": True}
    common = {"max_epochs": 2, "data": loader(6, ranks=ranks, dtype=torch.float64)}
    whole = fit_on_ranks(ranks, strategy, _Scheduled, **common, **saves)
    path = next(tmp_path.glob("epoch=0*.ckpt"))
    again = fit_on_ranks(ranks, strategy, _Scheduled, ckpt_path=path, weights_only=True, **common)
    middle = torch.load(path, weights_only=True)["state_dict"]
    for full, resumed in zip(whole, again, strict=True):
        torch.testing.assert_close(resumed.weights, full.weights, rtol=0, atol=1e-12)
        assert not all(torch.equal(full.state[name], value) for name, value in middle.items())


class _TwoPaces(TwoOptimizers):
    """The second optimizer steps at every third batch, starting with the first batch."""

    def due(self, batch_idx: int) -> list[Any]:
        return super().due(batch_idx + 2)


def _pushes_of_resumed(strategy: Any, path: Path) -> list[float]:
    """Pushes of both optimizers in a resumed epoch, with six steps and two steps."""
    model = partial(_TwoPaces, every=3)
    fitted(strategy, model, save=path)
    metrics = fitted(strategy, model, ckpt_path=path, max_epochs=2, weights_only=True).metrics
    return [metrics[f"hier/two_stage/{index}/node/pushes"] for index in range(2)]


def test_several_optimizers_resume_as_in_an_uninterrupted_run(tmp_path: Path) -> None:
    """Momentum continues, and the warm-up does not restart, which the first has ended.

    These servers wait for all ranks, so the run equals the uninterrupted one.
    """
    model, strategy = partial(_TwoPaces, every=3), partial(PSP, warmup_steps=4)
    for whole, resumed in run_ranks(_whole_and_resumed, 2, strategy, tmp_path / "a.ckpt", model):
        torch.testing.assert_close(resumed.weights, whole.weights, rtol=1e-6, atol=1e-7)


def test_each_optimizer_resumes_at_its_own_step_of_the_warm_up(tmp_path: Path) -> None:
    """The first optimizer has finished the warm-up. The second has two steps left.

    In the warm-up, a node pushes after every step.
    """
    strategy = partial(lh.TwoStageASGDStrategy, push_period=100, warmup_steps=4)
    assert run_ranks(_pushes_of_resumed, 1, strategy, tmp_path / "c") == [[1.0, 2.0]]


class _Saves(Net):
    """Saves at the start of training, before the first step."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def on_train_start(self) -> None:
        self.trainer.save_checkpoint(self.path)


def _saved_again(strategy: Any, folder: str) -> list[Any]:
    states = []
    for epochs, resumed, saved in ((1, None, "first"), (1, "first", "second"), (2, "first", None)):
        model = Net() if saved else _Saves(f"{folder}/third")
        trainer = make_trainer(strategy(), max_epochs=epochs)
        path = resumed and f"{folder}/{resumed}"
        trainer.fit(model, loader(6), ckpt_path=path, weights_only=True)
        if saved:
            trainer.save_checkpoint(f"{folder}/{saved}")
    for name in ("first", "second", "third"):
        checkpoint = torch.load(f"{folder}/{name}", weights_only=True)
        states.append((checkpoint["state_dict"], checkpoint["optimizer_states"]))
    return states


@pytest.mark.parametrize("strategy", [lh.PSPStrategy, lh.TwoStageASGDStrategy])
def test_optimizer_state_is_saved_again_where_nothing_was_trained(
    strategy: Any, tmp_path: Any
) -> None:
    """A finished run is resumed and saved, and a resumed run is saved at its start."""
    [(first, *others)] = run_ranks(_saved_again, 1, strategy, str(tmp_path))
    assert len(first[1][0]["state"]) == 4 and first[1][0]["state"][0]["momentum_buffer"].any()
    for other in others:
        torch.testing.assert_close(other, first, rtol=0.0, atol=0.0)
