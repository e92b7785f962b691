"""Checkpoints of a divided module: contents, paths, and loading with and without this package."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, in_turn
from tests.trainer.fitting import make_trainer

_ADAMW = partial(Divided, "AdamW", lr=0.02)


def _strategy(folder: bool) -> Any:
    return lh.HierarchicalModelParallelStrategy(
        group_size=2,
        block_sync=lh.BMUFAdam(block_size=2, local_beta1="keep"),
        save_distributed_checkpoint=folder,
    )


def _fitted(folder: bool, **settings: Any) -> Any:
    trainer = make_trainer(_strategy(folder), **settings)
    trainer.fit(_ADAMW(), batches(4, 4))
    return trainer


def _states(trainer: Any) -> tuple[Any, Any]:
    strategy = trainer.strategy
    optimizer = strategy.optimizer_state(trainer.optimizers[0])
    return strategy.lightning_module_state_dict(), optimizer.get("state", {})


def _saved(folder: bool, path: Path) -> tuple[Any, Any]:
    trainer = _fitted(folder)
    trainer.save_checkpoint(path)
    return _states(trainer)


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("formats")


@pytest.fixture(scope="module")
def saved(above: Path) -> list[Any]:
    """States of module and optimizer on every rank, saved as a folder and as a file."""
    jobs = [
        partial(_saved, True, above / "folder.ckpt"),
        partial(_saved, False, above / "file.ckpt"),
    ]
    return run_ranks(in_turn, 4, jobs)


def _save_several(folder: Path) -> list[str]:
    """Return errors of saves to unusable paths. Also check that a save replaces an older one."""
    errors = []
    for divided in (True, False):
        trainer = _fitted(divided)
        names = ["folder.ckpt", "file.ckpt"] if divided else ["file.ckpt", "folder.ckpt"]
        path, other = (folder / name for name in names)
        for unusable, options in (
            (folder / "taken", None),
            (other, None),
            (folder / "other.ckpt", {"own": 1}),
        ):
            with pytest.raises((OSError, TypeError)) as caught:
                trainer.save_checkpoint(unusable, storage_options=options)
            errors.append(str(caught.value))
        trainer.save_checkpoint(path)
        trainer.save_checkpoint(path)
        assert path.is_dir() == divided
        if divided:
            _interrupt(trainer, path)
    return errors


def _interrupt(trainer: Any, path: Path) -> None:
    """End a save between its two renames. The older checkpoint must be found and replaced."""
    saved, rename = _states(trainer), Path.replace

    def fail(own: Path, target: Path) -> Path:
        if own.suffix == ".incomplete":
            raise OSError("interrupted")
        return rename(own, target)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="interrupted"):
        patch.setattr(Path, "replace", fail)
        trainer.save_checkpoint(path)
    assert not path.exists()
    assert lh.newest_checkpoint(path.parent) == path.with_name("folder.ckpt.replaced")
    torch.testing.assert_close(_loaded(path, _strategy(True)), saved, rtol=0, atol=0)
    trainer.save_checkpoint(path)
    assert path.exists()


def test_paths(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "results.csv").touch()
    (tmp_path / "file.ckpt").touch()
    for errors in run_ranks(_save_several, 2, tmp_path):
        for message, error in zip(_UNUSABLE, errors, strict=True):
            assert message in error
    names = ["file.ckpt", "file.ckpt.ranks", "folder.ckpt", "folder.ckpt.ranks", "taken"]
    assert sorted(own.name for own in tmp_path.iterdir()) == names
    assert (tmp_path / "taken" / "results.csv").is_file()


_UNUSABLE = (
    "taken is a directory without a checkpoint",
    "file.ckpt is a file, and save_distributed_checkpoint=True saves a folder",
    "a CheckpointIO, which does not write the folder",
    "taken is a directory, and save_distributed_checkpoint=False saves a file",
    "folder.ckpt is a directory, and save_distributed_checkpoint=False saves a file",
    "`storage_options` arg is not supported for `AtomicCheckpointIO`",
)


@pytest.mark.usefixtures("saved")
def test_a_folder(above: Path) -> None:
    """A folder has the files of Lightning's format, and loads with ``weights_only=True``."""
    files = {own.name for own in (above / "folder.ckpt").iterdir()}
    assert files == {"meta.pt", ".metadata", "__0_0.distcp", "__1_0.distcp"}
    rest = torch.load(above / "folder.ckpt" / "meta.pt", weights_only=True)
    assert rest["global_step"] == 4 and "pytorch-lightning_version" in rest
    assert not {"state_dict", "optimizer_states"} & rest.keys()


def _loaded(path: Path, strategy: Any) -> tuple[Any, Any]:
    """State of module and optimizer on this rank, after a fit that resumes at its end."""
    module = _ADAMW()
    trainer = make_trainer(strategy() if callable(strategy) else strategy)
    trainer.fit(module, batches(4, 4), ckpt_path=path, weights_only=True)
    assert not module.seen
    return _states(trainer)


def _saved_by_ddp(path: Path) -> tuple[Any, Any]:
    trainer = make_trainer("ddp")
    trainer.fit(_ADAMW(), batches(4, 4))
    trainer.save_checkpoint(path)
    return _states(trainer)


def test_lightning_loads_the_file(above: Path, saved: list[Any]) -> None:
    """DDP without this package loads weights and optimizer state."""
    for loaded in run_ranks(_loaded, 2, above / "file.ckpt", "ddp"):
        torch.testing.assert_close(loaded, saved[0][1], rtol=0, atol=0)


def test_file_of_lightning_is_loaded(tmp_path: Path) -> None:
    """This package loads weights and optimizer state of a run with DDP."""
    path = tmp_path / "run.ckpt"
    saved, *_ = run_ranks(_saved_by_ddp, 4, path)
    loaded, *others = run_ranks(_loaded, 4, path, partial(_strategy, False))
    torch.testing.assert_close(loaded, saved, rtol=0, atol=0)
    assert others == [({}, {})] * 3
