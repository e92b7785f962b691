"""Tests that a module holds the global model of its checkpoint before any training.

This includes a resumed run with no steps left, and a save before the first step.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from tests.ranks import run_ranks
from tests.resume.runs import (
    DropoutNet,
    SaveAt,
    differences,
    outcome,
    shuffled,
    validation,
)
from tests.trainer.fitting import AVERAGING, BMUF, fit_on_ranks, make_trainer, this_rank


class _Starts(Callback):
    """Notes the state at the start of training."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append(_state(pl_module))


def _state(module: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


class _Tested(DropoutNet):
    test_step = DropoutNet.validation_step


def _resume(make_strategy: Any, path: Path, epochs: int) -> dict[str, Any]:
    starts, model = _Starts(), _Tested(seed=99)
    trainer = make_trainer(make_strategy(), callbacks=[starts], max_epochs=epochs)
    trainer.fit(model, shuffled(10), ckpt_path=path)
    end = _state(model)
    trainer.test(model, validation(4), verbose=False)
    return {"starts": starts.seen, "end": end, "tested": _state(model)}


def _train_then_resume(first: Any, then: Any, folder: Path) -> list[dict[str, Any]]:
    torch.manual_seed(this_rank())
    path = folder / "saved.ckpt"
    trainer = make_trainer(first(), callbacks=[SaveAt("on_train_epoch_end", 1, path)], max_epochs=1)
    trainer.fit(_Tested(), shuffled(10))
    return [_resume(then, path, epochs) for epochs in (1, 2)]


@pytest.mark.parametrize(
    ("first", "then"),
    [(BMUF, BMUF), (BMUF, partial(AVERAGING, block_size=7))],
    ids=["same", "another"],
)
def test_module_holds_the_global_model(first: Any, then: Any, tmp_path: Path) -> None:
    """The module holds it in a run with no steps left, and at the start of any other run."""
    results = run_ranks(_train_then_resume, 2, first, then, tmp_path)
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=True)["state_dict"]
    for done, going_on in results:
        assert done["starts"] == []
        assert differences(saved, done["end"]) == []
        assert differences(saved, done["tested"]) == []
        assert differences(saved, going_on["starts"][0]) == []
        assert differences(results[0][1]["end"], going_on["end"]) == []
        assert differences(saved, going_on["end"]) != []


def _go_on(
    strategy: Any, folder: Path, begin: str | None, *callbacks: Callback, **settings: Any
) -> dict[str, Any]:
    torch.manual_seed(this_rank() + len(begin or ""))
    path = None if begin is None else folder / begin
    trainer, model = make_trainer(strategy(), callbacks=list(callbacks), **settings), DropoutNet()
    trainer.fit(model, shuffled(10), ckpt_path=path)
    if settings.get("max_steps") == 1:
        trainer.save_checkpoint(folder / "saved again.ckpt")
    return outcome(trainer, model)


def _save_again(strategy: Any, folder: Path) -> list[str]:
    settings: dict[str, Any] = {"accumulate_grad_batches": 2, "max_epochs": 1}
    save = SaveAt("on_train_batch_end", 3, folder / "saved.ckpt")
    _go_on(strategy, folder, None, save, **settings)
    again = SaveAt("on_train_start", 1, folder / "as it starts.ckpt")
    direct = _go_on(strategy, folder, "saved.ckpt", again, **settings)
    _go_on(strategy, folder, "saved.ckpt", max_steps=1, **settings)
    return [
        difference
        for name in ("saved again.ckpt", "as it starts.ckpt")
        for difference in differences(direct, _go_on(strategy, folder, name, **settings))
    ]


def test_save_before_any_training_loses_nothing(tmp_path: Path) -> None:
    """It keeps random states, the position in the data, and gradients of an accumulated step."""
    assert run_ranks(_save_again, 2, BMUF, tmp_path) == [[], []]


def test_float64_is_loaded_without_rounding(tmp_path: Path) -> None:
    """Without the strategy, Lightning loads the model before it converts the module to float64."""
    path = tmp_path / "saved.ckpt"
    settings = {"data": partial(shuffled, 5), "precision": "64-true"}
    saved = fit_on_ranks(2, BMUF, DropoutNet, save=path, **settings)
    resumed = fit_on_ranks(2, BMUF, DropoutNet, ckpt_path=path, **settings)
    for whole, again in zip(saved, resumed, strict=True):
        assert whole.weights.dtype == torch.float64
        assert torch.equal(whole.weights, again.weights)
