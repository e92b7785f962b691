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
    fit_in_chunks,
    run_reference,
)
from tests.ranks import run_ranks

MOMENTUM = {"momentum": 0.8, "lr": 0.05}
THRESHOLD = 0.02
_ADAMW = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1, eps=1e-4)
_AVERAGE = partial(BlockMomentum, eta=0.0)


def _ma(tau: int, **more: Any) -> Case:
    return case(f"MA tau={tau}", ModelAveragingStrategy, block_size=tau, **more)


def _bmuf(kind: str, tau: int, **more: Any) -> Case:
    return case(
        f"BMUF {kind} tau={tau}",
        BMUFStrategy,
        block_size=tau,
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


def _gtc(exact_below: int) -> Case:
    settings = {"threshold": THRESHOLD, "dense_below": exact_below, "batches": 12}
    return case(f"GTC dense_below={exact_below}", GTCStrategy, **settings)


def _tiers(name: str, group: int, **settings: Any) -> Case:
    """A run in groups, with GTC if a threshold is given."""
    return case(name, group_size=group, **{"block_size": 3, "block_momentum": 0.5, **settings})


def _exact_groups(across: str) -> Case:
    name = f"exact gradients in groups, {across}"
    return _tiers(name, 2, block_size=2, across=across, **MOMENTUM)


def _with_local_momentum(kind: str, group: int) -> Case:
    settings = {"threshold": THRESHOLD, "dense_below": 0, "batches": 11, **MOMENTUM}
    # With GTC of updates, the workers of a group have momentum of their own.
    of = "gradient" if kind == "average" else "auto"
    return _tiers(f"local_momentum={kind} P={group}", group, local_momentum=kind, of=of, **settings)


def _of(kind: str, group: int, **run: Any) -> Case:
    """GTC of gradients or updates in groups, by AdamW or SGD with momentum."""
    settings = {"threshold": 0.004, "dense_below": 20, "batches": 12, "local_momentum": "keep"}
    return _tiers(f"GTC of={kind} P={group} {run}", group, of=kind, **settings, **run)


def _accumulating(base: Case, batches: int) -> Case:
    name = f"{base.name}, accumulating, {batches} batches"
    return replace(base, name=name, accumulate=2, batches=batches, epochs=2)


def _pair(group: int, across: str) -> Case:
    """Two optimizers with blocks of their own. Optimizer b takes a third of the steps of a."""
    settings = {"threshold": THRESHOLD, "dense_below": 10, "find_unused_parameters": True}
    run = {"block_size": 2, "net": "pair", "batches": 16, **MOMENTUM}
    return _tiers(f"two optimizers P={group} {across}", group, across=across, **settings, **run)


def _batch_norm(group: int, across: str) -> Case:
    settings = {"block_momentum": 0.6, "across": across, "net": "batch_norm", "batches": 8}
    return _tiers(f"BatchNorm P={group} {across}", group, **settings)


def _rebinding(group: int, across: str) -> Case:
    name = f"rebound buffers P={group} {across}"
    return replace(_batch_norm(group, across), name=name, net="rebinding")


def _partly_used(group: int, local_momentum: str) -> Case:
    settings = {"threshold": THRESHOLD, "dense_below": 0, "find_unused_parameters": True}
    run = {"local_momentum": local_momentum, "net": "partly_used", "batches": 10, **MOMENTUM}
    run["of"] = "gradient" if local_momentum == "average" else "auto"
    return _tiers(f"frozen and unused P={group} {local_momentum}", group, **settings, **run)


def _overlapping(base: Case) -> Case:
    return changed(base, f"{base.name}, overlapping", overlap=True)


def _warming(base: Case, warmup: int) -> Case:
    return changed(base, f"{base.name}, warm-up {warmup}", warmup_steps=warmup)


# Group size and shard placement. In a group of one rank, this rank is the leader.
PLACES = ((1, "leader"), (2, "sharded"), (4, "sharded"))
CASES = [
    *(_ma(tau) for tau in (1, 3, 50)),
    _bmuf("NBM", 1),
    *(_bmuf(kind, 3) for kind in ("CBM", "NBM", "start")),
    replace(_bmuf("NBM", 3), name="BMUF NBM, blocks across epochs", batches=4, epochs=3),
    *(_two_tiers(group, batches=11) for group in (1, 2, 4)),
    _gtc(0),
    _gtc(20),
    *(_exact_groups(across) for across in ("leader", "sharded")),
    *(_with_local_momentum(kind, 2) for kind in ("reset", "keep", "average")),
    _with_local_momentum("average", 1),
    *(_of("update", group, **MOMENTUM) for group in (1, 2, 4)),
    *(_of("update", group, rule=_ADAMW) for group in (2, 4)),
    _of("gradient", 2, **MOMENTUM),
    _of("update", 2),
    _accumulating(_ma(2), 8),
    _accumulating(_two_tiers(2), 7),
    *(_pair(group, across) for group, across in PLACES),
    *(_batch_norm(group, across) for group, across in PLACES),
    *(_rebinding(group, across) for group, across in ((1, "leader"), (2, "sharded"))),
    _warming(_rebinding(2, "leader"), 3),
    _overlapping(_rebinding(2, "leader")),
    _partly_used(1, "average"),
    _partly_used(2, "reset"),
    replace(_two_tiers(2), name="tied weights", net="tied"),
    _warming(_ma(2, **MOMENTUM), 3),
    _warming(_two_tiers(2, batches=11, **MOMENTUM), 4),
    _warming(_batch_norm(2, "leader"), 3),
    _warming(_pair(2, "leader"), 2),
    replace(_warming(_batch_norm(1, "leader"), 20), name="warm-up longer than the run"),
    replace(_two_tiers(2), name="compiled", compiled=True),
    _overlapping(_ma(3, **MOMENTUM)),
    *(_overlapping(_bmuf(kind, 2)) for kind in ("CBM", "NBM", "start")),
    _overlapping(replace(_bmuf("NBM", 3), name="blocks across epochs", batches=4, epochs=3)),
    *(_overlapping(_two_tiers(group, batches=11)) for group in (2, 4)),
    _overlapping(_batch_norm(2, "sharded")),
    _overlapping(_pair(2, "sharded")),
    _overlapping(_partly_used(2, "reset")),
    _overlapping(_warming(_two_tiers(2, batches=11, **MOMENTUM), 4)),
]


_WHOLE = [
    _two_tiers(1, batches=11),
    *(_exact_groups(across) for across in ("leader", "sharded")),
    *(_batch_norm(2, across) for across in ("leader", "sharded")),
]
CUT = [*_WHOLE, *map(_overlapping, _WHOLE), _with_local_momentum("average", 2)]


@pytest.fixture(scope="module")
def cut_states() -> list[dict[str, Values]]:
    """Final states of runs with chunks of 7 elements, on two hosts of two ranks."""
    return run_ranks(fit_in_chunks, 4, CUT, 7, ranks_per_node=2)


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
    plain, start = own["MA tau=3"], own["BMUF start tau=3"]
    assert plain == Method(tau=3, momentum="keep", outer=plain.outer)
    assert plain.outer.keywords == {"eta": 0.0}
    classical = {"eta": 0.6, "zeta": 0.9, "c": 1.0, "nesterov": False, "literal": False}
    assert own["BMUF CBM tau=3"].outer.keywords == classical
    assert start.outer.keywords == {**classical, "nesterov": True, "literal": True}
    gtc = own["BMUF_GTC P=2"]
    expected = Method(
        group=2, tau=3, threshold=THRESHOLD, exact_below=20, momentum="keep", outer=gtc.outer
    )
    assert gtc == expected and gtc.outer.keywords["eta"] == 0.5
    assert own["BMUF_GTC P=2, warm-up 4"] == replace(
        gtc, warmup=4, of="update", outer=own["BMUF_GTC P=2, warm-up 4"].outer
    )
