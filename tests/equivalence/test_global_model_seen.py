"""Validation, callbacks and checkpoints see the global model, and do not change training.

Every case runs twice on four ranks: with validation and checkpoints in the middle of blocks, and
without. Every model that was seen is compared with that of the reference after the same batch.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hier import BMUFAdam, BMUFGTCStrategy, BMUFStrategy, GTCStrategy
from tests.equivalence.cases import (
    Case,
    Values,
    case,
    difference,
    fragment_case,
    identical,
)
from tests.equivalence.watching import Seen, reference_seen, watch_both
from tests.ranks import run_ranks

TOLERANCE = 1e-10
_OFTEN = {"val_check_interval": 1}


def _case(name: str, *args: Any, **settings: Any) -> Case:
    """A run with validation after every batch, by default with blocks of three steps."""
    own = {"trainer": _OFTEN, "block_size": 3, "block_momentum": 0.6}
    return case(name, *args, **{**own, **settings})


def _bmuf(name: str, **settings: Any) -> Case:
    return _case(name, BMUFStrategy, momentum=0.5, **settings)


def _two_tiers(name: str, across: str = "leader", **settings: Any) -> Case:
    return _case(name, group_size=2, across=across, momentum=0.5, **settings)


ADAMW = partial(torch.optim.AdamW, lr=0.02, betas=(0.6, 0.9), weight_decay=0.1)
NADAM = partial(torch.optim.NAdam, lr=0.02, betas=(0.8, 0.999), momentum_decay=0.05)
_MOMENTS: dict[str, Any] = {"local_beta1": "keep", "block_momentum": 0.6, "trainer": _OFTEN}
_GTC = {"threshold": 0.02, "dense_below": 0, "net": "batch_norm"}
CASES = [
    _bmuf("BMUF", epochs=2),
    _two_tiers("overlapping", "sharded", overlap=True, net="batch_norm", batches=10),
    _two_tiers("rebound buffers", local_momentum="average", net="rebinding"),
    # Optimizer b is at the end of a block for several steps of a.
    _case("two optimizers", group_size=2, block_size=2, find_unused_parameters=True, net="pair"),
    _case(
        "BMUF_GTC with warm-up",
        BMUFGTCStrategy,
        group_size=2,
        block_momentum="auto",
        warmup_steps=3,
        **_GTC,
    ),
    fragment_case("DiLoCo", outer_optimizer=ADAMW, overlap=True, trainer=_OFTEN, batches=7),
    fragment_case("BMUF-Adam", BMUFAdam, rule=NADAM, fragments=2, overlap=3, **_MOMENTS),
    case("GTC, BatchNorm", GTCStrategy, trainer=_OFTEN, **_GTC),
]
DROPOUT = _bmuf("dropout", net="dropout")
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
Runs = list[dict[str, tuple[Seen, Seen]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the checkpoints, with a subfolder for each case."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """Records of every rank and case: with validation and saves, and without."""
    return run_ranks(watch_both, 4, [*CASES, DROPOUT], folder)


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[int, Values]]:
    """The reference's global model after every batch for each case."""
    return {own.name: reference_seen(own, looking=True)[0].validated for own in CASES}


def _assert_seen(seen: dict[int, Values], expected: dict[int, Values]) -> None:
    assert seen
    for count, values in seen.items():
        assert difference(values, expected[count]) < TOLERANCE, f"after batch {count}"


@BY_NAME
def test_validation_sees_the_global_model(
    case: Case, runs: Runs, expected: dict[str, dict[int, Values]]
) -> None:
    for own in runs:
        seen = own[case.name][0].validated
        assert len(seen) == case.batches * case.epochs
        _assert_seen(seen, expected[case.name])


@BY_NAME
def test_callbacks_and_module_see_it_at_an_epochs_end(
    case: Case, runs: Runs, expected: dict[str, dict[int, Values]]
) -> None:
    for own in runs:
        for run in own[case.name]:
            assert len(run.epoch_ends) == case.epochs
            _assert_seen(run.epoch_ends, expected[case.name])
            _assert_seen(run.module_epoch_ends, expected[case.name])


@BY_NAME
def test_checkpoints_hold_it(
    case: Case, runs: Runs, expected: dict[str, dict[int, Values]], folder: Path
) -> None:
    for own in runs:
        _assert_seen(own[case.name][0].saved, expected[case.name])
    for count in (1, 2, 4, 6):
        checkpoint = torch.load(folder / case.name / f"{count}.ckpt", weights_only=True)
        weights = {n.removeprefix("net."): v for n, v in checkpoint["state_dict"].items()}
        assert identical(weights, runs[0][case.name][0].saved[count])


@BY_NAME
def test_fit_returns_it(case: Case, runs: Runs, expected: dict[str, dict[int, Values]]) -> None:
    last = case.batches * case.epochs
    for own in runs:
        assert difference(own[case.name][0].final, expected[case.name][last]) < TOLERANCE


@BY_NAME
def test_all_ranks_see_the_same_bits(case: Case, runs: Runs) -> None:
    first = runs[0][case.name][0]
    for own in runs[1:]:
        other = own[case.name][0]
        for name in ("validated", "epoch_ends", "module_epoch_ends", "saved"):
            mine, others = getattr(first, name), getattr(other, name)
            assert mine.keys() == others.keys()
            for count in mine:
                assert identical(mine[count], others[count]), f"{name} after batch {count}"
        assert identical(first.final, other.final)


@pytest.mark.parametrize("case", [*CASES, DROPOUT], ids=lambda case: case.name)
def test_looking_changes_nothing(case: Case, runs: Runs) -> None:
    for rank, own in enumerate(runs):
        evaluated, plain = own[case.name]
        assert not plain.validated and not plain.saved
        for count, values in evaluated.local.items():
            assert identical(values, plain.local[count]), f"rank {rank} after batch {count}"
        assert identical(evaluated.final, plain.final)
