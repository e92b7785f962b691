"""Checkpoints in a store: URLs of fsspec, for plain and divided modules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from lightning.pytorch.callbacks import ModelCheckpoint

import lightning_hier as lh
from lightning_hier.strategies.checkpoints.atomic_io import AtomicCheckpointIO
from lightning_hier.strategies.checkpoints.integrity import DamagedFileError
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, differences, outcome, shuffled
from tests.sharded.nets import Divided, batches
from tests.trainer.fitting import BMUF, make_trainer


class Store(DirFileSystem):
    """An object store: it has no renaming and keeps listings, as s3fs does, until they are dropped.

    Several processes see its objects, which those of ``memory://`` do not, because it is backed by
    the directory of the variable STORE.
    """

    protocol = "store"

    def __init__(self, **options: Any) -> None:
        super().__init__(os.environ["STORE"], LocalFileSystem(auto_mkdir=True), **options)
        self.listings: dict[Any, Any] = {}

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        key = path, detail
        if key not in self.listings:
            self.listings[key] = super().ls(path, detail, **options)
        return self.listings[key]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError

    rename = mv


fsspec.register_implementation("store", Store, clobber=True)


def _fit(epochs: int, path: str | None = None, *savers: ModelCheckpoint) -> tuple[Any, Any]:
    trainer = make_trainer(
        BMUF(), max_epochs=epochs, callbacks=[*savers], enable_checkpointing=bool(savers)
    )
    model = DropoutNet()
    trainer.fit(model, shuffled(5), ckpt_path=path)
    return trainer, outcome(trainer, model)


def _save_and_resume(url: str) -> list[str]:
    def saver() -> ModelCheckpoint:
        return ModelCheckpoint(url, every_n_train_steps=3, save_last=True)

    def names(folder: str) -> list[str]:
        return [own.rsplit("/", 1)[-1] for own in store.ls(folder, detail=False)]

    store = fsspec.filesystem(url.partition(":")[0])
    _, whole = _fit(3)
    assert lh.newest_checkpoint(url) is None
    stopped, _ = _fit(2, None, saver())
    store.invalidate_cache()
    # One checkpoint and the last one are kept, each with the state of one save.
    kept = ["epoch=1-step=9.ckpt", "epoch=1-step=9.ckpt.ranks", "last.ckpt", "last.ckpt.ranks"]
    assert sorted(names(url)) == kept
    assert all(len(names(f"{url}/{ranks}")) == 1 for ranks in kept[1::2])
    _, resumed = _fit(3, "last", saver())
    assert len(resumed["seen"]) == 15 - 9
    whole["seen"] = whole["seen"][9:]
    last = lh.newest_checkpoint(url)
    assert str(last).startswith(f"{url}/last")

    path, write = f"{url}/a.ckpt", AtomicCheckpointIO.save_checkpoint
    stopped.save_checkpoint(path)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="unreachable"):
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", _unless_main(write))
        stopped.save_checkpoint(path)
    assert lh.newest_checkpoint(url) == path  # the older one

    stopped.strategy.barrier()
    if stopped.is_global_zero:
        store.rm(f"{path}.ranks", recursive=True)
    stopped.strategy.barrier()
    assert lh.newest_checkpoint(url) == last
    with pytest.raises(DamagedFileError, match="rank_00000.pt: it is missing"):
        _fit(3, path)
    return differences(whole, resumed)


def _unless_main(write: Any) -> Any:
    def save(io: Any, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        if str(path).endswith("a.ckpt"):
            raise OSError("the store is unreachable")
        write(io, checkpoint, path, storage_options)

    return save


def test_exact_resume_from_a_store(tmp_path: Path) -> None:
    """With ``ckpt_path="last"``, for which Lightning looks at a local path."""
    results = run_ranks(_save_and_resume, 2, "store://a", env={"STORE": str(tmp_path)})
    assert results == [[]] * 2


def _divided(folder: bool, epochs: int, path: str | None = None, **settings: Any) -> Any:
    sync = lh.BMUFAdam(block_size=2, local_beta1="keep")
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=2, block_sync=sync, save_distributed_checkpoint=folder
    )
    model = Divided("AdamW", lr=0.02)
    trainer = make_trainer(strategy, max_epochs=epochs, **settings)
    trainer.fit(model, batches(4, 3), ckpt_path=path, weights_only=True)
    return model.seen


def _divided_runs() -> list[bool]:
    url = "store://divided"
    with pytest.raises(ValueError, match="set save_distributed_checkpoint=False"):
        _divided(True, 1, default_root_dir=url, enable_checkpointing=True)
    whole = _divided(False, 2)
    _divided(False, 1, callbacks=[ModelCheckpoint(url, save_last=True)], enable_checkpointing=True)
    resumed = _divided(False, 2, f"{url}/last.ckpt")
    return [torch.equal(a, b) for a, b in zip(whole[3:], resumed, strict=True)]


def test_divided_module_in_a_store(tmp_path: Path) -> None:
    """One file resumes exactly. A folder is an error before training."""
    for equal in run_ranks(_divided_runs, 4, env={"STORE": str(tmp_path)}):
        assert equal == [True] * 3
