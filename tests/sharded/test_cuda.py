"""A divided module on a CUDA device that two ranks share, over gloo. Skipped without a GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, gathered
from tests.trainer.fitting import make_trainer

_SYNCS = {
    "bmuf_adam": partial(lh.BMUFAdam, block_size=3),
    "delayed": partial(lh.DiLoCo, block_size=4, fragments=2, overlap=2, merge=0.5),
}


def _fit(
    name: str, accelerator: str, *, offload: bool = False, save: Path | None = None, resumes: bool
) -> Tensor:
    """Weights after ten steps of a run that saves after seven, or resumes."""
    settings: dict[str, Any] = {}
    if save is not None and not resumes:
        saves = ModelCheckpoint(save.parent, save.stem, every_n_train_steps=7, save_top_k=-1)
        settings = {"callbacks": [saves], "enable_checkpointing": True}
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=1,
        block_sync=_SYNCS[name](),
        offload_outer_state=offload,
    )
    dist.init_process_group("gloo")  # because ranks that share a GPU cannot use NCCL
    module: Any = Divided("AdamW", lr=0.02)
    trainer = make_trainer(strategy, max_steps=10, accelerator=accelerator, **settings)
    path = save if resumes else None
    trainer.fit(module, batches(2, 10), ckpt_path=path, weights_only=True)
    return gathered(module).cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("name", _SYNCS)
def test_groups_of_one_rank_train_as_on_the_cpu(name: str, tmp_path: Path) -> None:
    """Models are equal up to the order of additions. Offloaded state and a resume are bit-equal."""
    run = partial(run_ranks, _fit, 2, name, ranks_per_node=1)
    path = tmp_path / "saved.ckpt"
    on_cpu, on_gpu = run("cpu", resumes=False), run("gpu", save=path, resumes=False)
    torch.testing.assert_close(on_gpu[0], on_cpu[0], rtol=0, atol=1e-11)
    resumed = run("gpu", offload=True, save=path, resumes=True)
    for weights in (*on_gpu, *run("gpu", offload=True, resumes=False), *resumed):
        assert torch.equal(weights, on_gpu[0])
