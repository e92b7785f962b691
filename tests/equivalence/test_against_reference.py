"""MA, BMUF, GTC and BMUF-GTC on four ranks under a Trainer: final models equal the reference's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lightning_hier import BMUFGTCStrategy, BMUFStrategy, GTCStrategy, ModelAveragingStrategy
from lightning_hier.reference import BlockMomentum, Method
from tests.equivalence.cases import (
    Case,
    Values,
    case,
    changed,
    check_final,
    difference,
    fit_all,
    in_chunks,
    run_reference,
)
from tests.ranks import run_ranks

MOMENTUM = {"momentum": 0.8, "lr": 0.05}
THRESHOLD = 0.02
_ADAMW = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1, eps=1e-4)
_AVERAGE = partial(BlockMomentum, eta=0.0)


def _ma(tau: int, **more: Any) -> Case:
    return case(f"MA tau={tau}", ModelAveragingStrategy, block_size=tau, **more)


def _bmuf(kind: str, **more: Any) -> Case:
    return case(
        f"BMUF {kind}",
        BMUFStrategy,
        block_size=3,
        block_momentum=0.6,
        block_lr=0.9,
        nesterov=kind != "CBM",
        update_from="start" if kind == "start" else "global",
        **more,
    )


def _two_tiers(group: int, **more: Any) -> Case:
    """BMUF_GTC with tau = 3. N in the automatic eta is the number of groups."""
    settings = {"group_size": group, "threshold": THRESHOLD, "dense_below": 20, "block_size": 3}
    return case(f"BMUF_GTC P={group}", BMUFGTCStrategy, **settings, **more)


def _tiers(name: str, group: int, **settings: Any) -> Case:
    """A run in groups, with GTC if a threshold is given."""
    return case(name, group_size=group, **{"block_size": 3, "block_momentum": 0.5, **settings})


def _exact_groups(across: str) -> Case:
    name = f"exact gradients in groups, {across}"
    return _tiers(name, 2, block_size=2, across=across, **MOMENTUM)


def _with_local_momentum(kind: str) -> Case:
    settings = {"threshold": THRESHOLD, "dense_below": 0, "batches": 11, **MOMENTUM}
    # With GTC of updates, the workers of a group have momentum of their own.
    of = "gradient" if kind == "average" else "auto"
    return _tiers(f"local_momentum={kind}", 2, local_momentum=kind, of=of, **settings)


def _of(group: int, **run: Any) -> Case:
    """GTC of updates in groups, by AdamW or SGD with momentum."""
    settings = {"threshold": 0.004, "dense_below": 20, "batches": 12, "local_momentum": "keep"}
    return _tiers(f"GTC of updates P={group} {run}", group, of="update", **settings, **run)


def _pair(across: str) -> Case:
    """Two optimizers with blocks of their own. Optimizer b takes a third of the steps of a."""
    settings = {"threshold": THRESHOLD, "dense_below": 10, "find_unused_parameters": True}
    run = {"block_size": 2, "net": "pair", "batches": 16, **MOMENTUM}
    return _tiers(f"two optimizers {across}", 2, across=across, **settings, **run)


def _buffers(net: str, across: str) -> Case:
    settings = {"block_momentum": 0.6, "across": across, "net": net, "batches": 8}
    return _tiers(f"{net} {across}", 2, **settings)


def _partly_used(group: int, local_momentum: str) -> Case:
    settings = {"threshold": THRESHOLD, "dense_below": 0, "find_unused_parameters": True}
    run = {"local_momentum": local_momentum, "net": "partly_used", "batches": 10, **MOMENTUM}
    run["of"] = "gradient" if local_momentum == "average" else "auto"
    return _tiers(f"frozen and unused P={group} {local_momentum}", group, **settings, **run)


def _overlapping(base: Case) -> Case:
    return changed(base, f"{base.name}, overlapping", overlap=True)


def _warming(base: Case, warmup: int) -> Case:
    return changed(base, f"{base.name}, warm-up {warmup}", warmup_steps=warmup)


_ACROSS_EPOCHS = replace(_bmuf("NBM"), name="BMUF NBM, blocks across epochs", batches=4, epochs=3)
_WARMED = _warming(_two_tiers(2, batches=11, **MOMENTUM), 4)
CASES = [
    *(_ma(tau) for tau in (3, 50)),
    *(_bmuf(kind) for kind in ("CBM", "start")),
    _ACROSS_EPOCHS,
    _two_tiers(2, batches=11),
    case("GTC", GTCStrategy, threshold=THRESHOLD, dense_below=20, batches=12),
    *(_with_local_momentum(kind) for kind in ("reset", "average")),
    *(_of(group, **run) for group, run in ((2, MOMENTUM), (2, {}), (4, {"rule": _ADAMW}))),
    replace(_two_tiers(2), name="accumulating", accumulate=2, epochs=2),
    _pair("sharded"),
    _warming(_buffers("rebinding", "leader"), 3),
    _partly_used(1, "average"),
    replace(_two_tiers(2), name="tied weights", net="tied"),
    _WARMED,
    replace(_warming(_buffers("batch_norm", "leader"), 20), name="warm-up longer than the run"),
    replace(_two_tiers(2), name="compiled", compiled=True),
    _overlapping(_bmuf("start")),
    _overlapping(_ACROSS_EPOCHS),
    _overlapping(_WARMED),
    _overlapping(_buffers("rebinding", "sharded")),
    _overlapping(_warming(_pair("leader"), 2)),
    _overlapping(_partly_used(2, "reset")),
]
CUT = [
    _two_tiers(1, batches=11),
    _exact_groups("leader"),
    _overlapping(_exact_groups("sharded")),
    _buffers("batch_norm", "sharded"),
    _overlapping(_buffers("batch_norm", "leader")),
    _with_local_momentum("average"),
]


@pytest.fixture(scope="module")
def cut_states() -> list[dict[str, Values]]:
    """Final states of runs with chunks of 7 elements, on two hosts of two ranks."""
    return run_ranks(in_chunks, 4, fit_all, CUT, 7, ranks_per_node=2)


@pytest.mark.parametrize("case", CUT, ids=lambda case: case.name)
def test_chunks_and_hosts_change_nothing(case: Case, cut_states: list[dict[str, Values]]) -> None:
    """With several groups on a host, the groups of a host are averaged first."""
    check_final(case, cut_states, run_reference(case).global_model())


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(fit_all, 4, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Case, states: list[dict[str, Values]]) -> None:
    """All ranks have its model. Without any average, it would end elsewhere."""
    expected = run_reference(case).global_model()
    check_final(case, states, expected)
    alone = run_reference(replace(case, method=Method(tau=50, outer=_AVERAGE))).global_model()
    assert case.name == "MA tau=50" or difference(alone, expected) > 1e-6


def test_settings_of_the_reference() -> None:
    """They are written out here, because all others are computed from those of the strategy."""
    own = {each.name: each.method for each in CASES}
    plain, start = own["MA tau=3"], own["BMUF start"]
    assert plain == Method(tau=3, momentum="keep", outer=plain.outer)
    assert plain.outer.keywords == {"eta": 0.0}
    classical = {"eta": 0.6, "zeta": 0.9, "c": 1.0, "nesterov": False, "literal": False}
    assert own["BMUF CBM"].outer.keywords == classical
    assert start.outer.keywords == {**classical, "nesterov": True, "literal": True}
    gtc = own["BMUF_GTC P=2"]
    expected = Method(
        group=2, tau=3, threshold=THRESHOLD, exact_below=20, momentum="keep", outer=gtc.outer
    )
    assert gtc == expected and gtc.outer.keywords["eta"] == 0.5
    assert own["BMUF_GTC P=2, warm-up 4"] == replace(
        gtc, warmup=4, of="update", outer=own["BMUF_GTC P=2, warm-up 4"].outer
    )
