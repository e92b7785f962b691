"""A divided module is trained as a whole one: the same weights for every block synchronisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, trained

_ADAMW = partial(Divided, "AdamW", lr=0.02)

_SYNCS: dict[str, tuple[Any, Any]] = {
    "model_averaging": (partial(lh.ModelAveraging, block_size=3), Divided),
    "bmuf": (partial(lh.BMUF, block_size=3), partial(Divided, momentum=0.9)),
    "bmuf_adam": (partial(lh.BMUFAdam, block_size=3), _ADAMW),
    "diloco": (partial(lh.DiLoCo, block_size=3), _ADAMW),
    "fragments_delayed": (
        partial(lh.DiLoCo, block_size=4, fragments=2, overlap=2, merge=0.5),
        _ADAMW,
    ),
}


def _whole(sync: Any, size: int, warmup_steps: int) -> Any:
    return lh.HierarchicalStrategy(group_size=size, block_sync=sync(), warmup_steps=warmup_steps)


def _divided(sync: Any, size: int, warmup_steps: int, tensor_parallel_size: int = 1) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=size,
        block_sync=sync(),
        warmup_steps=warmup_steps,
        tensor_parallel_size=tensor_parallel_size,
    )


def _compare(whole: list[dict[str, Any]], divided: list[dict[str, Any]]) -> None:
    """Compare the models of every group after every step, in validation and at the end.

    Also the metrics of norms, in which every element counts once.
    """
    ranks_for_one = len(divided) // len(whole)
    for number, other in enumerate(divided):
        one = whole[number // ranks_for_one]
        for key in ("seen", "validated"):
            for mine, others in zip(one[key], other[key], strict=True):
                torch.testing.assert_close(mine, others, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one["weights"], other["weights"], rtol=1e-12, atol=1e-12)
        assert other["norms"] == pytest.approx(one["norms"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", _SYNCS)
def test_two_groups_of_two(name: str) -> None:
    sync, model = _SYNCS[name]
    whole, divided = (
        run_ranks(trained, 4, partial(kind, sync, 2, 2), 10, model, val_check_interval=5)
        for kind in (_whole, _divided)
    )
    _compare(whole, divided)


@pytest.mark.parametrize("size", [1, 4])
def test_groups_of_one_and_one_group(size: int) -> None:
    sync, model = _SYNCS["bmuf_adam"]
    whole, divided = (
        run_ranks(trained, 4, partial(kind, sync, size, 0), 7, model) for kind in (_whole, _divided)
    )
    _compare(whole, divided)


def test_two_groups_of_two_by_two() -> None:
    sync, model = _SYNCS["bmuf_adam"]
    whole = run_ranks(trained, 4, partial(_whole, sync, 2, 2), 7, model)
    own = partial(_divided, sync, 4, 2, tensor_parallel_size=2)
    divided = run_ranks(trained, 8, own, 7, model, replicas=4)
    _compare(whole, divided)
