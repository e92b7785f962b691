"""A divided module resumes on another mesh as a whole one does on the same number of groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import SaveAt
from tests.sharded.nets import Divided, batches
from tests.trainer.fitting import make_trainer


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


# The numbers of groups differ, because the whole module would resume exactly otherwise. With three
# groups, step counts are fractions that float32 does not represent.
_MESHES = (Mesh(3, 1), Mesh(8, 4, 2), Mesh(2, 1))
_SYNC = partial(lh.BMUFAdam, block_size=4, fragments=2, overlap=2)


def _whole(mesh: Mesh) -> Any:
    return lh.HierarchicalStrategy(group_size=mesh.size, block_sync=_SYNC(), warmup_steps=0)


def _divided(mesh: Mesh) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=mesh.size,
        tensor_parallel_size=mesh.tensor,
        block_sync=_SYNC(),
        offload_outer_state=mesh.tensor > 1,  # in one of the runs
    )


def _fit(strategy: Any, number: int, folder: Path) -> list[Tensor]:
    """Weights after each of seven steps of a run that resumes that of the mesh before, and saves.

    Every run ends in the middle of a block, with an update in flight.
    """
    saves = SaveAt("on_train_batch_end", 7, folder / f"{number}.ckpt")
    trainer = make_trainer(strategy(), max_steps=7 * (number + 1), callbacks=[saves])
    module = Divided("AdamW", lr=0.02)
    path = folder / f"{number - 1}.ckpt" if number else None
    trainer.fit(module, batches(4, 28), ckpt_path=path, weights_only=True)
    return module.seen


def test_outer_state_is_kept_on_another_mesh(tmp_path: Path) -> None:
    for name in ("whole", "divided"):
        (tmp_path / name).mkdir()
    for number, mesh in enumerate(_MESHES):
        runs = partial(_whole, mesh.of_whole()), partial(_divided, mesh)
        whole, divided = (
            run_ranks(_fit, ranks, strategy, number, tmp_path / name)
            for name, strategy, ranks in zip(
                ("whole", "divided"), runs, (mesh.of_whole().ranks, mesh.ranks), strict=True
            )
        )
        for rank, seen in enumerate(divided):
            expected = whole[rank * len(whole) // len(divided)]
            assert len(seen) == len(expected) == 7
            for one, other in zip(expected, seen, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
