"""A divided module resumes on another mesh as a whole one does on the same number of groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import SaveAt
from tests.sharded.nets import Divided, batches
from tests.trainer.fitting import make_trainer

_ADAMW = partial(Divided, "AdamW", lr=0.02)


class Mesh(NamedTuple):
    """Numbers of ranks.

    Attributes:
        ranks: all ranks.
        size: ranks of a group.
        tensor: tensor-parallel ranks, which share a batch. A whole module has none.

    """

    ranks: int
    size: int
    tensor: int = 1

    def of_whole(self) -> Mesh:
        return Mesh(self.ranks // self.tensor, self.size // self.tensor)


# Block synchronisation, module, and the meshes before and after. The numbers of groups differ,
# because the whole module would resume exactly otherwise.
_CASES: dict[str, tuple[Any, Any, Mesh, Mesh]] = {
    # With three groups, step counts are fractions that float32 does not represent.
    "bmuf_adam": (partial(lh.BMUFAdam, block_size=3), _ADAMW, Mesh(3, 1), Mesh(8, 4, 2)),
    "in_flight": (
        partial(lh.BMUFAdam, block_size=4, fragments=2, overlap=2),
        _ADAMW,
        Mesh(8, 4, 2),
        Mesh(2, 1),
    ),
}


def _whole(sync: Any, mesh: Mesh) -> Any:
    return lh.HierarchicalStrategy(group_size=mesh.size, block_sync=sync(), warmup_steps=0)


def _divided(sync: Any, mesh: Mesh) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=mesh.size,
        tensor_parallel_size=mesh.tensor,
        block_sync=sync(),
        offload_outer_state=mesh.tensor > 1,  # in at most one of the two runs
    )


def _fit(strategy: Any, model: Any, steps: int, path: Path, *, resume: bool) -> list[Tensor]:
    """Weights after every step of a run that saves at its end, or resumes."""
    saves = [] if resume else [SaveAt("on_train_batch_end", steps, path)]
    trainer = make_trainer(strategy(), max_steps=steps, callbacks=saves)
    module = model()
    trainer.fit(module, batches(4, 14), ckpt_path=path if resume else None, weights_only=True)
    return module.seen


def _resumed(name: str, path: Path, *, whole: bool) -> list[list[Tensor]]:
    """Weights of every rank after every step of a run that resumes in the middle of a block."""
    sync, model, *meshes = _CASES[name]
    before, after = (mesh.of_whole() if whole else mesh for mesh in meshes)
    strategy = partial(_whole if whole else _divided, sync)
    run_ranks(_fit, before.ranks, partial(strategy, before), model, 7, path, resume=False)
    return run_ranks(_fit, after.ranks, partial(strategy, after), model, 14, path, resume=True)


@pytest.mark.parametrize("name", _CASES)
def test_outer_state_is_kept_on_another_mesh(name: str, tmp_path: Path) -> None:
    whole, divided = (
        _resumed(name, tmp_path / f"{kind}.ckpt", whole=kind) for kind in (True, False)
    )
    for number, seen in enumerate(divided):
        expected = whole[number * len(whole) // len(divided)]
        assert len(seen) == len(expected) == 7
        for one, other in zip(expected, seen, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
