"""Tests that EMAWeightAveraging has one average on all ranks, which a resumed run restores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging
from torch import Tensor

from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, SaveAt, check_exact, flat, shuffled, validation
from tests.trainer.fitting import BMUF_ADAM, BMUF_GTC, make_trainer, this_rank, weights

DECAY = 0.7


def _ema() -> list[Callback]:
    return [EMAWeightAveraging(decay=DECAY)]


class _Validated(Callback):
    """Notes the weights in validation, and the weights at the end of an epoch after it."""

    def __init__(self) -> None:
        self.during: list[Tensor] = []
        self.after: list[Tensor] = []

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        self.during.append(weights(pl_module))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.after.append(weights(pl_module))


def _train(
    strategy: Any, optimizer: str, callbacks: list[Callback], **settings: Any
) -> tuple[DropoutNet, _Validated]:
    torch.manual_seed(this_rank())
    watch, model = _Validated(), DropoutNet(optimizer)
    trainer = make_trainer(
        strategy(), callbacks=[*callbacks, watch], max_epochs=2, num_sanity_val_steps=0, **settings
    )
    trainer.fit(model, shuffled(5), validation(2))
    return model, watch


def _average_and_not(strategy: Any, optimizer: str, path: Path) -> dict[str, Any]:
    plain, _ = _train(strategy, optimizer, [])
    save = SaveAt("on_train_batch_end", 7, path)
    model, watch = _train(strategy, optimizer, [*_ema(), save], val_check_interval=3)
    unseen, _ = _train(strategy, optimizer, _ema(), limit_val_batches=0)
    return {
        "plain": plain.seen,
        "seen": model.seen,
        "during": watch.during,
        "after": watch.after,
        "global": weights(plain),
        "end": model.state_dict(),
        "unseen": unseen.state_dict(),
    }


def _means(results: list[dict[str, Any]]) -> list[Tensor]:
    """Moving average of the ranks' mean model after each step."""
    paths = [torch.stack(result["seen"]).double() for result in results]
    models = torch.stack(paths).mean(0)
    averages = [models[0]]
    for model in models[1:]:
        averages.append(DECAY * averages[-1] + (1 - DECAY) * model)
    return averages


def test_all_ranks_see_the_average_of_the_mean_model(tmp_path: Path) -> None:
    """Validation, a checkpoint and the end of training have this average. Training is unchanged."""
    path = tmp_path / "seven.ckpt"
    results = run_ranks(_average_and_not, 4, BMUF_GTC, "SGD", path)
    means = _means(results)
    saved = torch.load(path, weights_only=True)
    torch.testing.assert_close(flat(saved["state_dict"]).double(), means[6], rtol=1e-5, atol=1e-6)
    for result in results:
        assert all(torch.equal(a, b) for a, b in zip(result["seen"], result["plain"], strict=True))
        for validated, step in zip(result["during"], (3, 8), strict=True):
            torch.testing.assert_close(validated.double(), means[step - 1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(flat(result["end"]).double(), means[-1], rtol=1e-5, atol=1e-6)
        assert torch.equal(result["after"][-1], result["global"])
        for key, value in result["end"].items():
            assert torch.equal(value, results[0]["end"][key]), key
            assert torch.equal(value, result["unseen"][key]), key


def test_resume_restores_the_average_of_every_rank(tmp_path: Path) -> None:
    check_exact(2, BMUF_ADAM, tmp_path, optimizer="Adam", make_callbacks=_ema, max_epochs=2)
