"""Checkpoints of a divided module: exact resume, loading in Lightning, and resume on one group."""

from __future__ import annotations

import runpy
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.resume.runs import SaveAt
from tests.sharded.nets import Divided, batches, gathered, in_turn
from tests.trainer.fitting import make_trainer


class _Scheduled(Divided):
    """With a typical schedule, whose learning rates are NumPy numbers."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [LambdaLR(optimizer, lambda n: np.cos(n * np.float64(0.1)))]


_ADAMW = partial(_Scheduled, "AdamW", lr=0.02)
_SYNCS = {
    "bmuf_adam": partial(lh.BMUFAdam, block_size=4),
    "delayed": partial(
        lh.DiLoCo, block_size=4, fragments=2, overlap=2, merge=0.5, across_dtype="int8"
    ),
}
# Kinds of checkpoints: the block synchronisation, and whether the checkpoint is a folder.
KINDS = [("bmuf_adam", True), ("bmuf_adam", False), ("delayed", True)]


def _fit(
    name: str, folder: bool, size: int = 2, *, save: Path | None = None, load: Path | None = None
) -> Tensor:
    """Weights after 12 steps of a run that saves after 7, or resumes.

    Either the run that saves or the one that resumes offloads the state of the outer steps. The
    tests thus cover both directions between offloaded and other state.
    """
    settings: dict[str, Any] = {}
    if save is not None:
        saves = ModelCheckpoint(save.parent, save.stem, every_n_train_steps=7, save_top_k=-1)
        settings = {"callbacks": [saves], "enable_checkpointing": True}
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=size,
        block_sync=_SYNCS[name](),
        save_distributed_checkpoint=folder,
        offload_outer_state=folder == (load is None),
    )
    module = _ADAMW()
    trainer = make_trainer(strategy, max_steps=12, **settings)
    trainer.fit(module, batches(4, 12), ckpt_path=load, weights_only=True)
    return gathered(module)


def _path(above: Path, name: str, folder: bool) -> Path:
    return above / f"{name}-{folder}" / "run.ckpt"


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def trained(above: Path) -> list[list[Tensor]]:
    """Weights of every rank in the runs that have saved the checkpoints."""
    jobs = [partial(_fit, *kind, save=_path(above, *kind)) for kind in KINDS]
    return run_ranks(in_turn, 4, jobs)


def test_exact_resume_in_the_middle_of_a_block(above: Path, trained: list[list[Tensor]]) -> None:
    for kind in KINDS:
        assert _path(above, *kind).is_dir() == kind[1]
    jobs = [partial(_fit, *kind, load=_path(above, *kind)) for kind in KINDS]
    for expected, resumed in zip(trained, run_ranks(in_turn, 4, jobs), strict=True):
        for kind, one, other in zip(KINDS, expected, resumed, strict=True):
            assert torch.equal(one, other), kind


def _automatic(path: Path, steps: int, *, resume: bool) -> tuple[int, Any]:
    """Automatic warm-up and block size of a run of so many steps that saves or resumes."""
    saves = ModelCheckpoint(path.parent, path.stem, every_n_train_steps=7, save_top_k=-1)
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=1, block_sync=lh.BMUFAdam(), warmup_steps="auto"
    )
    settings: dict[str, Any] = {"callbacks": [saves], "enable_checkpointing": True}
    trainer = make_trainer(strategy, max_steps=steps, **({} if resume else settings))
    load = path if resume else None
    trainer.fit(_ADAMW(), batches(4, 100), ckpt_path=load, weights_only=True)
    return strategy.warmup_steps, strategy.block_sync and strategy.block_sync.block_size


def test_automatic_values_of_another_length_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    jobs = [partial(_automatic, path, steps, resume=steps != 12) for steps in (12, 13)]
    assert run_ranks(in_turn, 2, jobs) == [[(1, 1)] * 2] * 2
    expected = (
        "began with warmup_steps=1, block_size=1, block_momentum=0.0, moments_every=4, and 'auto' "
        "is warmup_steps=9, block_size=4, block_momentum=0.1111"
    )
    for outcome in rank_outcomes(_automatic, 2, path, 90, resume=True):
        assert outcome.error is not None and expected in outcome.error


def _load_plain(path: Path) -> Tensor:
    """Weights that Lightning's own strategy loads on four ranks."""
    strategy = ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1)
    module = _ADAMW()
    trainer = make_trainer(strategy, limit_val_batches=1)
    trainer.validate(module, batches(4, 1), ckpt_path=path, verbose=False)
    return gathered(module)


@pytest.mark.usefixtures("trained")
def test_lightning_loads_and_consolidates(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = (_path(above, "bmuf_adam", is_folder) for is_folder in (True, False))
    for path in (folder, file):
        assert lh.newest_checkpoint(path.parent) == path
    loaded = run_ranks(in_turn, 4, [partial(_load_plain, path) for path in (folder, file)])
    whole = above / "whole.ckpt"
    monkeypatch.setattr(sys, "argv", ["", str(folder), "--output_file", str(whole)])
    runpy.run_module("lightning.fabric.utilities.consolidate_checkpoint", run_name="__main__")
    for path in (whole, file):
        module = Divided.load_from_checkpoint(path, weights_only=True)
        for own in loaded:
            assert all(torch.equal(weights, gathered(module)) for weights in own)


@pytest.mark.usefixtures("trained")
def test_resume_from_a_file_on_one_group(above: Path) -> None:
    path = _path(above, "bmuf_adam", False)
    weights = run_ranks(_fit, 4, "bmuf_adam", False, 4, load=path)
    assert all(torch.equal(weights[0], own) for own in weights)


def _fit_whole(path: Path) -> list[str]:
    """Warnings of a run that resumes with a module that is not divided."""
    strategy = lh.HierarchicalStrategy(group_size=1, block_sync=_SYNCS["bmuf_adam"]())
    trainer = make_trainer(strategy, max_steps=12)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(_ADAMW(), batches(4, 12), ckpt_path=path, weights_only=True)
    return [str(warning.message) for warning in caught]


@pytest.mark.usefixtures("trained")
def test_a_module_that_is_not_divided_starts_from_a_file(above: Path) -> None:
    first, _ = run_ranks(_fit_whole, 2, _path(above, "bmuf_adam", False))
    assert "the state of outer steps, such as block momentum, is lost" in " ".join(first)


def _resume_with_others(paths: list[Path]) -> list[str]:
    """Errors of runs that resume with other optimizers than AdamW."""
    errors = []
    for path in paths:
        for kind in ("SGD", "Adam"):
            strategy = lh.HierarchicalModelParallelStrategy(
                group_size=2, block_sync=lh.DiLoCo(block_size=4)
            )
            try:
                make_trainer(strategy, max_steps=12).fit(
                    Divided(kind), batches(4, 12), ckpt_path=path, weights_only=True
                )
            except ValueError as error:
                errors.append(str(error))
    return errors


@pytest.mark.usefixtures("trained")
def test_other_optimizers_are_one_error_that_names_both(above: Path) -> None:
    paths = [_path(above, "bmuf_adam", is_folder) for is_folder in (True, False)]
    for sgd, adam, *of_file in run_ranks(_resume_with_others, 4, paths):
        assert of_file == [sgd, adam]
        assert "optimizer 0 of the checkpoint does not match SGD of configure_optimizers" in sgd
        assert "has decoupled_weight_decay=True instead of False. A run must resume with" in adam


def _in_accumulation(path: Path) -> tuple[Tensor, Tensor]:
    """Weights of a run that saves between two batches of a step, and of the one that resumes."""
    ends = []
    for resumed in (False, True):
        strategy = lh.HierarchicalModelParallelStrategy(group_size=4, tensor_parallel_size=2)
        saves = [] if resumed else [SaveAt("on_train_batch_end", 3, path)]
        trainer = make_trainer(strategy, callbacks=saves, accumulate_grad_batches=2)
        model = Divided()
        trainer.fit(model, batches(2, 6), ckpt_path=path if resumed else None)
        ends.append(gathered(model))
    return ends[0], ends[1]


def test_gradients_of_an_unfinished_step_are_resumed(tmp_path: Path) -> None:
    for uninterrupted, resumed in run_ranks(_in_accumulation, 4, tmp_path / "a.ckpt"):
        assert torch.equal(uninterrupted, resumed)
