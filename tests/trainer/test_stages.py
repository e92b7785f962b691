"""Tests fit, validate, test and predict in several orders, and a second fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import (
    BMUF_GTC,
    Net,
    all_equal,
    fit_on_ranks,
    loader,
    make_trainer,
    steps_with_equal_models,
    weights,
)

STRATEGIES: dict[str, Any] = {
    "bmuf_gtc": partial(BMUF_GTC, block_size=3, dense_below=0),
    "psp": lh.PSPStrategy,
}


def _all_stages(name: str) -> dict[str, Any]:
    model, strategy = Net(), STRATEGIES[name]()
    trainer = make_trainer(strategy)
    seen: dict[str, Any] = {}
    seen["before"] = trainer.validate(model, loader(2), verbose=False)[0]["val_loss"]
    trainer.fit(model, loader(7), loader(2))
    seen["first"] = weights(model)
    seen["in_fit"] = float(trainer.callback_metrics["val_loss"])
    seen["after"] = trainer.validate(model, loader(2), verbose=False)[0]["val_loss"]
    seen["test"] = trainer.test(model, loader(2), verbose=False)[0]["val_loss"]
    predicted = trainer.predict(model, loader(2))
    assert predicted is not None and len(predicted) == 2
    seen["untouched"] = torch.equal(weights(model), seen["first"])
    bytes_before = strategy.traffic.total("across").payload_bytes
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, loader(7), loader(2))
    seen["second"] = weights(model)
    seen["more_bytes"] = strategy.traffic.total("across").payload_bytes - bytes_before
    seen["steps"] = trainer.global_step
    return seen


@pytest.mark.parametrize("name", STRATEGIES)
def test_stages_in_another_order_and_a_second_fit(name: str) -> None:
    results = run_ranks(_all_stages, 4, name)
    for fit in ("first", "second"):
        assert all_equal(result[fit] for result in results)
    for result in results:
        assert not torch.equal(result["first"], result["second"])
        assert result["after"] == result["test"] != result["before"]
        # Servers sum metrics in another order while they train.
        rounding = 0.0 if name == "bmuf_gtc" else 1e-6
        assert result["in_fit"] == pytest.approx(result["after"], rel=rounding, abs=0.0)
        assert result["after"] == results[0]["after"]
        assert result["untouched"]
        assert result["steps"] == 14
    assert sum(result["more_bytes"] for result in results) > 0


class _Recurrent(Net):
    """Has an LSTM. cuDNN packs its weights, so they must keep their storage."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.places = [p.data_ptr() for p in self.parameters()]

    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(self.lstm(batch[:, None])[0][:, 0])

    def on_validation_epoch_end(self) -> None:
        assert [p.data_ptr() for p in self.parameters()] == self.places
        self.notes.append(float(weights(self).double().sum()))


def test_validation_in_mid_block_sees_one_model_on_all_ranks() -> None:
    settings = {"validate": 1, "val_check_interval": 3, "max_epochs": 2}
    strategy = partial(lh.BMUFStrategy, block_size=4, warmup_steps=0)
    first, second = fit_on_ranks(2, strategy, _Recurrent, **settings)
    assert first.notes == second.notes
    assert len(first.notes) == 1 + 4  # the sanity check and every third batch
    assert steps_with_equal_models([first.seen, second.seen]) == [4, 8, 12]
