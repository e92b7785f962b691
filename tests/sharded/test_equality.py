"""A divided module has the same weights as a whole one, for every block synchronisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, Unequal, in_turn, trained

_ADAMW = partial(Divided, "AdamW", lr=0.02)

_SYNCS: dict[str, tuple[Any, Any]] = {
    "bmuf": (partial(lh.BMUF, block_size=3), partial(Divided, momentum=0.9)),
    "bmuf_adam": (partial(lh.BMUFAdam, block_size=3), _ADAMW),
    "fragments_delayed": (
        partial(lh.DiLoCo, block_size=4, fragments=2, overlap=2, merge=0.5),
        _ADAMW,
    ),
}


def _whole(sync: Any, size: int, warmup_steps: int) -> Any:
    return lh.HierarchicalStrategy(group_size=size, block_sync=sync(), warmup_steps=warmup_steps)


def _divided(
    sync: Any, size: int, warmup_steps: int, tensor_parallel_size: int = 1, offload: bool = False
) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=size,
        block_sync=sync(),
        warmup_steps=warmup_steps,
        tensor_parallel_size=tensor_parallel_size,
        offload_outer_state=offload,
    )


def _compare(whole: list[dict[str, Any]], divided: list[dict[str, Any]]) -> None:
    """Compare the models of every group after every step, in validation and at the end.

    The metrics of norms are compared as well, because they must count every element once.
    """
    ranks_for_one = len(divided) // len(whole)
    for number, other in enumerate(divided):
        one = whole[number // ranks_for_one]
        for key in ("seen", "validated"):
            for mine, others in zip(one[key], other[key], strict=True):
                torch.testing.assert_close(mine, others, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one["weights"], other["weights"], rtol=1e-12, atol=1e-12)
        assert other["norms"] == pytest.approx(one["norms"], rel=1e-12, abs=1e-12)


# Synchronisation, ranks of a group, warm-up, steps and settings of the Trainer.
_CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    **{name: (name, 2, 2, 10, {"val_check_interval": 5}) for name in _SYNCS},
    "groups of one": ("bmuf_adam", 1, 0, 7, {}),
    "one group": ("bmuf_adam", 4, 0, 7, {}),
}


def _job(kind: Any, case: str) -> Any:
    name, size, warmup_steps, steps, settings = _CASES[case]
    sync, model = _SYNCS[name]
    if kind is _divided:
        # Offloading must not change the weights, so some cases offload (see test_checkpoints.py).
        kind = partial(_divided, offload=name in ("bmuf", "fragments_delayed"))
    return partial(trained, partial(kind, sync, size, warmup_steps), steps, model, **settings)


@pytest.fixture(scope="module")
def ranks() -> dict[str, Any]:
    """Results of all ranks for each case: of a whole module, and of a divided one."""
    jobs = [_job(kind, case) for case in _CASES for kind in (_whole, _divided)]
    results = [*zip(*run_ranks(in_turn, 4, jobs), strict=True)]
    return {case: [*results[2 * n : 2 * n + 2]] for n, case in enumerate(_CASES)}


@pytest.mark.parametrize("case", _CASES)
def test_on_a_mesh_of_one_dimension(case: str, ranks: dict[str, Any]) -> None:
    _compare(*ranks[case])


def test_two_groups_of_two_by_two() -> None:
    """Groups of two data-parallel by two tensor-parallel ranks.

    Ranks with the same shard of a parameter have initialised it differently.
    """
    sync, model = _SYNCS["bmuf_adam"][0], partial(Unequal, "AdamW", lr=0.02)
    whole = run_ranks(trained, 4, partial(_whole, sync, 2, 2), 7, model)
    own = partial(_divided, sync, 4, 2, tensor_parallel_size=2)
    divided = run_ranks(trained, 8, own, 7, model, replicas=4)
    _compare(whole, divided)
