"""A divided module resumes on other groups and meshes as a whole one does on as many groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import SaveAt
from tests.sharded.nets import Divided, batches
from tests.trainer.fitting import make_trainer

_SGD = partial(Divided, momentum=0.9)
_ADAMW = partial(Divided, "AdamW", lr=0.02)

# Ranks, and ranks of a group that share a batch. The module may be divided among four ranks, and
# the whole one then has groups of the two that have different batches.
_2x2, _4x1, _2x1 = (4, 2, 1), (4, 1, 1), (2, 1, 1)
_3x1, _2x2x2 = (3, 1, 1), (8, 4, 2)

_CASES: dict[str, tuple[Any, Any, tuple[int, int, int], tuple[int, int, int]]] = {
    "bmuf": (partial(lh.BMUF, block_size=3), _SGD, _2x2, _4x1),
    "bmuf_adam": (partial(lh.BMUFAdam, block_size=3), _ADAMW, _3x1, _2x2x2),
    "diloco": (partial(lh.DiLoCo, block_size=3, fragments=2), _ADAMW, _4x1, _2x2),
    "in_flight": (
        partial(lh.BMUFAdam, block_size=4, fragments=2, overlap=2), _ADAMW, _2x2x2, _2x1,
    ),
}  # fmt: skip


def _strategy(sync: Any, ranks: int, size: int, tensor: int, *, whole: bool) -> Any:
    if whole:
        return lh.HierarchicalStrategy(group_size=size // tensor, block_sync=sync(), warmup_steps=0)
    return lh.HierarchicalModelParallelStrategy(
        group_size=size, tensor_parallel_size=tensor, block_sync=sync()
    )


def _fit(strategy: Any, model: Any, steps: int, path: Path, resume: bool) -> list[Tensor]:
    """Weights after every step. The run saves at its end, or resumes."""
    saves = [] if resume else [SaveAt("on_train_batch_end", steps, path)]
    trainer = make_trainer(strategy(), max_steps=steps, callbacks=saves)
    module = model()
    trainer.fit(module, batches(4, 14), ckpt_path=path if resume else None, weights_only=True)
    return module.seen


def _resumed(name: str, folder: Path, *, whole: bool) -> list[list[Tensor]]:
    sync, model, before, after = _CASES[name]
    path = folder / f"{whole}.ckpt"
    for mesh, steps, resume in ((before, 7, False), (after, 14, True)):
        strategy = partial(_strategy, sync, *mesh, whole=whole)
        ranks = mesh[0] // (mesh[2] if whole else 1)
        seen: list[list[Tensor]] = run_ranks(_fit, ranks, strategy, model, steps, path, resume)
    return seen


@pytest.mark.parametrize("name", _CASES)
def test_outer_state_is_kept_on_another_mesh(name: str, tmp_path: Path) -> None:
    """From the middle of a block, over the next synchronisations."""
    whole, divided = (_resumed(name, tmp_path, whole=kind) for kind in (True, False))
    for number, seen in enumerate(divided):
        wanted = whole[number * len(whole) // len(divided)]
        assert len(seen) == len(wanted) == 7
        for one, other in zip(wanted, seen, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
