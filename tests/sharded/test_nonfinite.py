"""NaN in the shard of one rank is an error on every rank before a model is sent or saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.tensor import DTensor

import lightning_hier as lh
from lightning_hier.comm.blocks.health import NonFiniteModelError
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, in_turn
from tests.trainer.fitting import make_trainer

_STEPS = 4


class OneShard(Divided):
    """A module whose fourth step sets one element to NaN that only rank 3 holds."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = 0

        def poison(*_: Any) -> None:
            nonlocal steps
            steps += 1
            if steps == _STEPS and self.global_rank == 3:
                assert isinstance(self.first.weight, DTensor)
                self.first.weight.detach().to_local()[0, 0] = float("nan")

        optimizer.register_step_post_hook(poison)
        return optimizer


# Settings of a run that ends at a block, a validation, its end, or a save.
_RUNS: list[dict[str, Any]] = [
    {"block_size": _STEPS},
    {"block_size": 100, "val_check_interval": _STEPS, "num_sanity_val_steps": 0},
    {"block_size": 100, "max_steps": _STEPS},
    {"block_size": 100, "enable_checkpointing": True},
]


def _error(folder: Path, block_size: int, **settings: Any) -> tuple[str, int, bool]:
    """The error, the bytes of models sent across groups, and whether a validation has started."""
    strategy = lh.HierarchicalModelParallelStrategy(
        group_size=2, block_sync=lh.DiLoCo(block_size=block_size)
    )
    if "enable_checkpointing" in settings:
        settings["callbacks"] = [ModelCheckpoint(folder, every_n_train_steps=_STEPS)]
    module = OneShard("AdamW")
    with pytest.raises(NonFiniteModelError) as caught:
        validation = batches(1, 1) if "val_check_interval" in settings else None
        make_trainer(strategy, **settings).fit(module, batches(4, 8), validation)
    sent = strategy.traffic.of("across", "models").payload_bytes
    return str(caught.value), sent, bool(module.validated)


def test_error_on_every_rank_before_a_model_is_sent_or_saved(tmp_path: Path) -> None:
    jobs = [partial(_error, tmp_path, **settings) for settings in _RUNS]
    for results in run_ranks(in_turn, 4, jobs):
        for error, sent, validated in results:
            assert "NaN or inf after 4 steps in parameters of rank 3 (group 1)" in error
            assert not sent and not validated
    assert not list(tmp_path.iterdir())
