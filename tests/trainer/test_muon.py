"""Tests Muon for matrices and another optimizer for the rest, each with its own blocks."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, stop_and_go_on
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    BMUF_ADAM,
    HIERARCHICAL,
    Net,
    Untrained,
    all_equal,
    errors_on_ranks,
    loader,
    make_trainer,
    steps_with_equal_models,
    weights,
)

DILOCO = partial(lh.DiLoCoStrategy, group_size=1, block_size=4, warmup_steps=0)
STRATEGIES: dict[str, Any] = {"model_averaging": AVERAGING, "bmuf": BMUF, "diloco": DILOCO}


def _optimizers(module: torch.nn.Module, rest: str) -> list[Any]:
    matrices = [p for p in module.parameters() if p.ndim == 2]
    others = [p for p in module.parameters() if p.ndim != 2]
    settings: Any = {"momentum": 0.9} if rest == "SGD" else {}
    return [
        torch.optim.Muon(matrices, lr=0.02),
        getattr(torch.optim, rest)(others, lr=0.01, **settings),
    ]


def _step(module: Any, batch: list[Tensor]) -> Tensor:
    """One backward pass, and a step of each optimizer."""
    muon, other = module.optimizers()
    loss: Tensor = module.loss(batch)
    muon.zero_grad()
    other.zero_grad()
    module.manual_backward(loss)
    muon.step()
    other.step()
    return loss


class _MuonNet(Net):
    """Notes the momentum of Muon after every step."""

    def __init__(self, rest: str = "AdamW") -> None:
        super().__init__(by_hand=True)
        self.rest = rest

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return _step(self, batch)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        state = self.trainer.optimizers[0].state.values()
        self.notes.append(torch.cat([value["momentum_buffer"].reshape(-1) for value in state]))

    def configure_optimizers(self) -> Any:
        return _optimizers(self, self.rest)


class _DropoutMuonNet(DropoutNet):
    def __init__(self, optimizer: str = "AdamW", *, seed: int = 11) -> None:
        super().__init__(optimizer, seed=seed, by_hand=True)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = _step(self, batch)
        self.seen.append(weights(self))
        return loss

    def configure_optimizers(self) -> Any:
        return _optimizers(self, "AdamW")


def _trained() -> dict[str, Any]:
    results = {}
    for name, strategy in STRATEGIES.items():
        model, data = _MuonNet(), loader(6, rows=4)
        inputs, targets = data.dataset.tensors
        before = float(model.loss([inputs, targets]))
        make_trainer(strategy(), max_epochs=3).fit(model, data)
        after = float(model.loss([inputs, targets]))
        results[name] = (before, after, model.seen, weights(model))
    return results


def test_learns_with_equal_global_models() -> None:
    ranks = run_ranks(_trained, 2)
    for name in STRATEGIES:
        before, after, _, _ = ranks[0][name]
        assert after < 0.95 * before, name
        assert steps_with_equal_models(rank[name][2] for rank in ranks) == [*range(4, 18, 4)], name
        assert all_equal(rank[name][3] for rank in ranks), name


# Two fragments of each optimizer, one of which is in flight when the run is saved.
STREAMING = partial(
    HIERARCHICAL,
    group_size=1,
    block_sync=lh.DiLoCo(block_size=4, fragments=2, overlap=2, merge=0.5),
)
RESUMED = {"bmuf": BMUF, "streaming": STREAMING}


def _resumed(folder: Path) -> dict[str, list[str]]:
    differences = {}
    for name, strategy in RESUMED.items():
        subfolder = folder / name
        subfolder.mkdir(exist_ok=True)
        arguments = (strategy, "on_train_batch_end", 7, subfolder)
        differences[name] = stop_and_go_on(*arguments, make_model=_DropoutMuonNet)
    return differences


def test_resumes_exactly_in_the_middle_of_a_block(tmp_path: Path) -> None:
    assert run_ranks(_resumed, 2, tmp_path) == [dict.fromkeys(RESUMED, [])] * 2


class _UntrainedMuonNet(_MuonNet, Untrained):
    """Fails at its first batch."""

    training_step = Untrained.training_step


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (BMUF_ADAM, r"BMUFAdam needs .*got Muon: use .*DiLoCo\(\.\.\.\) or BMUF\(\.\.\.\)"),
        (partial(BMUF, local_momentum="average"), r"'average'.* got AdamW: .*'reset' or 'keep'"),
    ],
)
def test_one_error_before_training(strategy: Any, words: str) -> None:
    for message in errors_on_ranks(2, strategy, _UntrainedMuonNet):
        assert re.search(words, message), message
