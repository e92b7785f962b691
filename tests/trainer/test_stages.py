"""Fitting again, validating, testing and predicting, in several orders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights


def _equal(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors)


def _all_stages() -> dict[str, Any]:
    model = Net()
    strategy = lh.BMUFGTCStrategy(
        group_size=2, block_size=3, dense_below=0, warmup_steps=0, density=0.01
    )
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


def test_stages_in_another_order_and_a_second_fit() -> None:
    results = run_ranks(_all_stages, 4)
    for name in ("first", "second"):
        assert _equal([result[name] for result in results])
    for result in results:
        assert not torch.equal(result["first"], result["second"])
        assert result["after"] == result["test"] == result["in_fit"] != result["before"]
        assert result["untouched"]
        assert result["steps"] == 14
    assert sum(result["more_bytes"] for result in results) > 0


def _two_trainers() -> list[Tensor]:
    """A new Trainer and strategy in the same processes."""
    found = []
    for name in ("bmuf", "gtc", "bmuf_gtc"):
        model = Net()
        make_trainer(name).fit(model, loader(4))
        found.append(weights(model))
    return found


def test_several_trainers_in_one_process() -> None:
    for models in zip(*run_ranks(_two_trainers, 2), strict=True):
        assert _equal(list(models))


class _Recurrent(Net):
    """An LSTM: its weights are packed by cuDNN, so they must stay where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, batch: Tensor) -> Tensor:
        return super().forward(self.lstm(batch[:, None])[0][:, 0])


def _validate_in_mid_block() -> tuple[list[Tensor], list[float], bool]:
    model = _Recurrent()
    places = [p.data_ptr() for p in model.parameters()]
    trainer = make_trainer(
        lh.BMUFStrategy(block_size=4, warmup_steps=0), val_check_interval=3, max_epochs=2
    )
    losses: list[float] = []
    model.on_validation_epoch_end = lambda: losses.append(  # type: ignore[method-assign]
        float(weights(model).double().sum())
    )
    trainer.fit(model, loader(6), loader(1))
    kept = [p.data_ptr() for p in model.parameters()] == places
    return model.seen, losses, kept


def test_validation_in_mid_block_sees_one_model_on_all_ranks() -> None:
    (first, first_losses, kept), (second, second_losses, _) = run_ranks(_validate_in_mid_block, 2)
    assert kept
    assert first_losses == second_losses
    assert len(first_losses) == 1 + 4  # the sanity check and every third batch
    equal = [i + 1 for i, pair in enumerate(zip(first, second, strict=True)) if _equal(list(pair))]
    assert equal == [4, 8, 12]
