"""Tests that workers trained as one batch of models equal those that the strategies train."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("lightning", reason="the example needs Lightning")

from examples.language.stacked import draws  # noqa: E402
from examples.language.stacked.by_trainer import train_by_trainer  # noqa: E402
from examples.language.stacked.settings import CONTEXT, VOCABULARY, Settings  # noqa: E402
from examples.language.stacked.train import run, score, train  # noqa: E402
from tests.ranks import run_ranks  # noqa: E402


@pytest.fixture(autouse=True)
def _random_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_stream", _stream_of_random_text)


@cache
def _stream_of_random_text(split: str) -> Tensor:
    return torch.randint(VOCABULARY, (4000,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"system": "synchronous"},
        {"system": "model_averaging"},
        {"system": "bmuf_cbm"},
        {"system": "bmuf_nbm", "block_momentum": 0.9},
        {"system": "bmuf_adam"},
        {"system": "bmuf_adam", "group_size": 2, "beta1": 0.5},
        {"system": "bmuf_adam_average"},
        {"system": "synchronous", "optimizer": "sgd"},
        {"system": "bmuf_nbm", "optimizer": "sgd"},
        {"system": "bmuf_adam", "beta1": 0.5, "moments_every": 3},
        {"system": "diloco", "fragments": 2},
        {"system": "diloco", "outer_momentum": None, "overlap": 2},
        {"system": "diloco", "fragments": 2, "overlap": 2, "merge": 0.5},
        {"system": "diloco", "overlap": 5},
        {"system": "diloco", "overlap": 5, "merge": 0.5},
        {"system": "diloco", "qsr": 0.007, "longest_block": 8, "schedule": "cosine"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_strategies_train_the_same_model(changes: dict[str, Any]) -> None:
    """In float64, after a warm-up and several blocks, of which the last one is shorter."""
    rate = 0.05 if "optimizer" in changes else 0.003
    settings = Settings(workers=4, steps=24, block_size=5, learning_rate=rate, **changes)
    ours, blocks = train(settings, torch.float64)
    theirs, _ = train_by_trainer(settings, torch.float64)
    if settings.qsr is None:
        assert blocks == (5 if settings.averages else 0)
    torch.testing.assert_close(theirs, ours, rtol=0.0, atol=1e-11)


_COMPRESSED = (
    {"across_dtype": "int8"},
    {"across_dtype": "int4", "fragments": 2, "overlap": 2, "merge": 0.5},
    {"across_density": 0.05},
    {"across_density": 0.1, "across_dtype": "int4"},
    {"system": "bmuf_adam", "across_dtype": "int8"},
)


def _compressed() -> list[Settings]:
    base = Settings(system="diloco", workers=2, steps=14, block_size=3, learning_rate=0.003)
    return [replace(base, **changes) for changes in _COMPRESSED]


def _train_on_ranks() -> list[Tensor]:
    draws._stream = _stream_of_random_text
    return [train_by_trainer(settings, torch.float64, ranks=2)[0] for settings in _compressed()]


def test_ranks_that_exchange_rounded_and_sparse_updates_train_the_same_model() -> None:
    """The strategies and the equations of the examples round to the same values."""
    theirs, others = run_ranks(_train_on_ranks, 2)
    for settings, first, other in zip(_compressed(), theirs, others, strict=True):
        ours, _ = train(settings, torch.float64)
        exact, _ = train(replace(settings, across_dtype="same", across_density=1.0), torch.float64)
        assert torch.equal(first, other)
        assert (ours - exact).abs().max() > 1e-5
        torch.testing.assert_close(first, ours, rtol=0.0, atol=1e-10)


def test_workers_of_a_run_share_its_text_whatever_their_number() -> None:
    few = draws.Draws(Settings(system="synchronous", workers=2, steps=6))
    many = draws.Draws(Settings(system="synchronous", workers=6, steps=2))
    texts = [
        torch.cat([drawn.batch(step)[0].flatten() for step in range(steps)])
        for drawn, steps in ((few, 6), (many, 2))
    ]
    torch.testing.assert_close(*texts)
    inputs, targets = many.batch(0)
    assert inputs.shape == (6, 1, CONTEXT)
    torch.testing.assert_close(inputs[..., 1:], targets[..., :-1])


def test_diverged_run_has_the_loss_of_a_uniform_model() -> None:
    wild = Settings(system="one_worker", optimizer="sgd", steps=4, learning_rate=1e30)
    assert run(wild).loss == pytest.approx(math.log(VOCABULARY))
    result = run(Settings(system="model_averaging", workers=2, steps=4))
    assert result.blocks == 1
    assert result.loss == pytest.approx(math.log(VOCABULARY), abs=0.2)
    assert math.isfinite(score(torch.zeros(10_056)))
