"""Tests that a checkpoint with other optimizers than the run is one error before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import AVERAGING, BMUF, BMUF_ADAM, Net, loader, make_trainer

Makes = Callable[[Net], list[Optimizer]]


class _Optimized(Net):
    def __init__(self, makes: Makes) -> None:
        super().__init__()
        self.makes = makes

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if self.automatic_optimization else None

    def configure_optimizers(self) -> Any:
        optimizers = self.makes(self)
        self.automatic_optimization = len(optimizers) == 1
        return optimizers


def _sgd(module: nn.Module) -> list[Optimizer]:
    return [SGD(module.parameters(), lr=0.05, momentum=0.9)]


def _adamw(module: nn.Module) -> list[Optimizer]:
    return [AdamW(module.parameters(), lr=0.01)]


def _two_groups(module: nn.Module) -> list[Optimizer]:
    weights = [p for p in module.parameters() if p.dim() > 1]
    biases = [p for p in module.parameters() if p.dim() == 1]
    return [SGD([{"params": weights}, {"params": biases}], lr=0.05, momentum=0.9)]


def _two_optimizers(module: Net) -> list[Optimizer]:
    return [SGD(module.layers[0].parameters(), lr=0.05), AdamW(module.layers[2].parameters())]


def _save(strategy: Any, makes: Makes, path: Path) -> None:
    trainer = make_trainer(strategy())
    trainer.fit(_Optimized(makes), loader(2))
    trainer.save_checkpoint(path)


def _resume(cases: list[tuple[Callable[[], Any], Makes]], path: Path) -> list[tuple[str, str, int]]:
    """Error, warnings and number of steps, for each strategy and its optimizers."""
    results = []
    for strategy, makes in cases:
        model = _Optimized(makes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                make_trainer(strategy(), max_epochs=2).fit(
                    model, loader(2), ckpt_path=path, weights_only=True
                )
                error = ""
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
        texts = [str(warning.message) for warning in caught]
        resuming = [text for text in texts if "Resuming from" in text]
        results.append((error, " ".join(resuming), len(model.seen)))
    return results


def test_each_change_of_optimizers_is_one_error_that_names_both(tmp_path: Path) -> None:
    path = tmp_path / "sgd.ckpt"
    run_ranks(_save, 2, partial(BMUF, block_size=2), _sgd, path)
    cases = [
        (partial(BMUF_ADAM, block_size=2), _adamw),
        (lh.PSPStrategy, _adamw),
        (lh.GTCStrategy, _two_groups),
        (lh.BMUFStrategy, _two_optimizers),
        (partial(AVERAGING, block_size=2), _sgd),
    ]
    first, second = run_ranks(_resume, 2, cases, path)
    assert [error for error, _, _ in first] == [error for error, _, _ in second]
    bmuf_adam, psp, groups, number, same = first
    for error, _, steps in (bmuf_adam, psp, groups, number):
        assert error.startswith("ValueError: "), error
        assert "load_from_checkpoint" in error
        assert steps == 0
    for error, _, _ in (bmuf_adam, psp):
        assert "does not match AdamW of configure_optimizers: it has dampening, momentum" in error
    assert "it has groups of [4] parameters instead of [2, 2]" in groups[0]
    assert "in the checkpoint is 1, but configure_optimizers returns 2" in number[0]
    assert (same[0], same[2]) == ("", 2)


def test_checkpoint_of_ddp_under_servers_is_warned_of_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ddp.ckpt"
    run_ranks(_save, 2, partial(str, "ddp"), _sgd, path)
    cases = [(lh.PSPStrategy, _sgd), (lh.PSPStrategy, _adamw), (lh.BMUFAdamStrategy, _adamw)]
    psp, other, bmuf_adam = run_ranks(_resume, 2, cases, path)[0]
    assert (psp[0], psp[2]) == ("", 2)
    assert "was not saved by a strategy with parameter servers" in psp[1]
    assert "start from its model and optimizer states" in psp[1]
    for error, _, steps in (other, bmuf_adam):
        assert "does not match AdamW of configure_optimizers: it has dampening, momentum" in error
        assert steps == 0
