"""Checkpoints of a divided module: exact resume, and other worlds."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, gathered
from tests.trainer.fitting import make_trainer

_ADAMW = partial(Divided, "AdamW", lr=0.02)


def _strategy(sync: Any, folder: bool, size: int = 2) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=size, block_sync=sync(), save_distributed_checkpoint=folder
    )


def _fit(
    strategy: Any, steps: int, save: Path | None = None, ckpt_path: Path | None = None
) -> torch.Tensor:
    module = _ADAMW()
    settings: dict[str, Any] = {}
    if save is not None:
        saves = ModelCheckpoint(save.parent, save.stem, every_n_train_steps=steps, save_top_k=-1)
        settings = {"callbacks": [saves], "enable_checkpointing": True}
    trainer = make_trainer(strategy(), max_steps=steps, **settings)
    trainer.fit(module, batches(4, 12), ckpt_path=ckpt_path, weights_only=True)
    return gathered(module)


_SYNCS = {
    "bmuf_adam": partial(lh.BMUFAdam, block_size=4),
    "delayed": partial(
        lh.DiLoCo, block_size=4, fragments=2, overlap=2, merge=0.5, across_dtype="int8"
    ),
}


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("name", _SYNCS)
def test_exact_resume_in_the_middle_of_a_block(name: str, folder: bool, tmp_path: Path) -> None:
    strategy = partial(_strategy, _SYNCS[name], folder)
    path = tmp_path / "run.ckpt"
    wanted = run_ranks(_fit, 4, strategy, 12)
    run_ranks(_fit, 4, strategy, 7, save=path)
    assert path.is_dir() == folder
    found = run_ranks(_fit, 4, strategy, 12, ckpt_path=path)
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)


def _load_plain(path: Path, folder: bool) -> torch.Tensor:
    """Weights that Lightning's own strategy loads on four ranks, as 2 x 2 and by itself."""
    strategy = ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1)
    module = _ADAMW()
    trainer = make_trainer(strategy, limit_val_batches=1)
    trainer.validate(module, batches(4, 1), ckpt_path=path, verbose=False)
    return gathered(module)


@pytest.mark.parametrize("folder", [True, False])
def test_lightning_loads_and_consolidates(folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    strategy = partial(_strategy, _SYNCS["bmuf_adam"], folder)
    run_ranks(_fit, 4, strategy, 7, save=path)
    assert lh.newest_checkpoint(tmp_path) == path
    loaded = run_ranks(_load_plain, 4, path, folder)
    if folder:
        whole = tmp_path / "whole.ckpt"
        command = [sys.executable, "-m", "lightning.fabric.utilities.consolidate_checkpoint"]
        subprocess.run([*command, str(path), "--output_file", str(whole)], check=True, timeout=60)
        path = whole
    module = Divided.load_from_checkpoint(path, weights_only=True)
    for own in loaded:
        assert torch.equal(own, gathered(module))


def test_resume_from_a_file_on_one_group(tmp_path: Path) -> None:
    """Without the state of outer steps, which only folders have for other meshes."""
    path = tmp_path / "run.ckpt"
    run_ranks(_fit, 4, partial(_strategy, _SYNCS["bmuf_adam"], False), 7, save=path)
    other = partial(_strategy, _SYNCS["bmuf_adam"], False, 4)
    found = run_ranks(_fit, 4, other, 12, ckpt_path=path)
    assert all(torch.equal(found[0], own) for own in found)
