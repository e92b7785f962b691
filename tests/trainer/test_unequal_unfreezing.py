"""Ranks that unfreeze different parameters get one error, before anything of them is mixed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit

EXACT = {"block_size": 4}
# Groups of one rank, and of two; in one group of all ranks no models are averaged.
STRATEGIES: dict[str, Any] = {
    "averaging": (lh.ModelAveragingStrategy, EXACT),
    "bmuf": (lh.BMUFStrategy, EXACT),
    "int8": (lh.BMUFStrategy, {**EXACT, "across_dtype": "int8"}),
    "overlap": (lh.BMUFStrategy, {**EXACT, "overlap": True}),
    "adam": (lh.BMUFAdamStrategy, EXACT),
    "warm-up": (lh.ModelAveragingStrategy, {**EXACT, "warmup_steps": 100}),
    "bmuf_gtc": (lh.BMUFGTCStrategy, {**EXACT, "group_size": 2, "dense_below": 10}),
    "overlap_gtc": (lh.BMUFGTCStrategy, {**EXACT, "group_size": 2, "overlap": True}),
    "sharded": (lh.BMUFGTCStrategy, {**EXACT, "group_size": 2, "across": "sharded"}),
    "gtc": (lh.GTCStrategy, {"dense_below": 10}),
}


class _Finetuned(Net):
    """Two frozen bodies, of one size or of two, and a head."""

    def __init__(self, adam: bool, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((size,), 0.1)) for size in sizes)
        self.adam = adam

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) + self.first.sum() ** 2 + self.second.sum() ** 2

    def configure_optimizers(self) -> Any:
        kind = torch.optim.Adam if self.adam else torch.optim.SGD
        return kind(self.layers.parameters(), lr=0.01)


class _Unfreeze(Callback):
    """One of two parameters, by rank, in the middle of an epoch."""

    def __init__(self, chosen: list[str | None]) -> None:
        self.name = chosen[int(os.environ["RANK"])]

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.first.requires_grad_(False)
        pl_module.second.requires_grad_(False)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 2 and self.name is not None:
            unfrozen = getattr(pl_module, self.name).requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": [unfrozen]})


def _unfreeze(name: str, chosen: list[str | None], sizes: tuple[int, int]) -> None:
    kind, settings = STRATEGIES[name]
    fit(kind(**settings), 12, _Finetuned(name == "adam", sizes), callbacks=[_Unfreeze(chosen)])


@pytest.mark.parametrize("name", STRATEGIES)
def test_one_rank_alone_unfreezes(name: str) -> None:
    chosen = ["first", *[None] * 3]
    for error in run_ranks(_unfreeze, 4, name, chosen, (3, 5), expect_failure=True):
        assert error.startswith(
            "OutOfStepError: the ranks train different parameters: 'first' ((3,) torch.float32 in "
            "optimizer 0 on rank 0; not at all on rank 1, 2, 3). Unfreeze the same parameters at "
            "the same step on all ranks"
        )


@pytest.mark.parametrize("name", ["averaging", "bmuf_gtc"])
@pytest.mark.parametrize("sizes", [(3, 3), (3, 70)], ids=["equal sizes", "other sizes"])
def test_groups_unfreeze_different_parameters(name: str, sizes: tuple[int, int]) -> None:
    """Of equal sizes they would be averaged with each other, and nobody would be told."""
    chosen = ["first", "first", "second", "second"]
    for error in run_ranks(_unfreeze, 4, name, chosen, sizes, expect_failure=True):
        assert "'first' ((3,) torch.float32 in optimizer 0 on rank 0, 1; not at all on" in error
        assert f"'second' (not at all on rank 0, 1; ({sizes[1]},) torch.float32 in" in error


class _FinetuneOnRank0(BaseFinetuning):
    """As its documentation shows it, but for the rank."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.layers[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1 and os.environ["RANK"] == "0":
            self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer)


class _Head(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.01)


def _finetune(kind: Any) -> None:
    fit(kind(), 4, _Head(), callbacks=[_FinetuneOnRank0()], max_epochs=2)


@pytest.mark.parametrize(
    "kind",
    [
        partial(lh.GTCStrategy, dense_below=10, warmup_steps=0, density=0.01),
        partial(lh.BMUFStrategy, block_size=50, warmup_steps=0),
    ],
)
def test_finetuning_of_one_rank_alone(kind: Any) -> None:
    """At once in the gradients of a group; else where models meet next, or at the end."""
    for error in run_ranks(_finetune, 2, kind, expect_failure=True):
        assert "different parameters: 'layers.0.weight'" in error and "'layers.0.bias'" in error
