"""Tests that unsupported combinations with virtual workers are one clear error.

Most of them are errors before training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, EMAWeightAveraging
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

import lightning_hier as lh
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    GTC,
    HIERARCHICAL,
    Net,
    errors_on_ranks,
    fit_on_ranks,
    loader,
    make_trainer,
    this_rank,
)
from tests.trainer.mistakes import Mistakes, errors_by_rank
from tests.trainer.trainer_settings import scaled


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter([])


class _Dealt(DistributedSampler[Any]):  # the error names the class
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, num_replicas=2, rank=this_rank())


class _Uneven(Sampler[int]):
    """Gives ranks different numbers of items."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.num_replicas, self.rank = ranks, rank

    def __iter__(self) -> Any:
        return iter(range(self.rank, 5, self.num_replicas))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _UnevenData(pl.LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        trainer: Any = self.trainer
        sampler = _Uneven(trainer.global_rank, trainer.world_size)
        return DataLoader(loader(3).dataset, sampler=sampler)


class _Transfers(Net):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class _Fetches(Net):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.layers[0]

    def training_step(self, dataloader_iter: Any) -> None:  # type: ignore[override]
        raise AssertionError("training has begun")


class _Clamps(Net):
    """Clamps parameters after every step, as the critic of a Wasserstein GAN does."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for parameter in self.layers[0].parameters():
            parameter.data.clamp_(-0.1, 0.1)


class _Teaches(Net):
    """Updates a mean teacher in every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(4, 8).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.layers[0].weight, 0.1)
        return self.loss(batch)


_BMUF = partial(lh.BMUFStrategy, virtual_workers=2, warmup_steps=0)
_GTC = partial(GTC, virtual_workers=2)
_FROZEN = "frozen parameters were written to in a step (teacher.weight)"


@dataclass(frozen=True)
class _Mistake:
    """A run that must fail, and text of its error."""

    says: str
    strategy: Any = _BMUF
    model: Any = Net
    data: Any = partial(loader, 3)
    settings: dict[str, Any] = field(default_factory=dict)


_CASES = {
    "by_hand": _Mistake("with manual optimization: leave", model=partial(Net, by_hand=True)),
    "sync_batchnorm": _Mistake(
        "sync_batchnorm=True in groups of several workers", _GTC, settings={"sync_batchnorm": True}
    ),
    "group_size": _Mistake(
        "the number of workers, got group_size=8 with 4 workers; sizes that do: 1, 2, 4",
        partial(BMUF_GTC, group_size=8, virtual_workers=2),
    ),
    "stream": _Mistake(
        "virtual_workers=2 divides the training data among 4 workers, and it is unknown how",
        data=lambda: DataLoader(_Stream()),
    ),
    "sampler": _Mistake(
        "_Dealt may divide the training data when it is created",
        data=lambda: DataLoader(loader(3).dataset, sampler=_Dealt(loader(3).dataset)),
    ),
    "hook": _Mistake("on_before_batch_transfer (use on_after_batch_transfer)", model=_Transfers),
    "precision": _Mistake("precision='16-mixed' (use 'bf16-mixed')", settings=scaled()),
    "ema": _Mistake(
        "can't be combined with EMAWeightAveraging", settings={"callbacks": [EMAWeightAveraging()]}
    ),
    "fetches": _Mistake(
        "BackboneFinetuning, training_step(dataloader_iter) (use training_step(batch",
        model=_Fetches,
        settings={"callbacks": [BackboneFinetuning()]},
    ),
    "several": _Mistake(
        "needs one DataLoader of training data, got a dict of 2: combine",
        data=lambda: {"one": loader(3), "other": loader(3)},
    ),
    "one_in_a_list": _Mistake(
        "one DataLoader of training data, got a list of 1: pass it directly",
        data=lambda: [loader(3)],
    ),
    "uneven": _Mistake(
        "the workers have different numbers of training batches: 2 on worker 0; 1 on",
        data=_UnevenData,
        settings={"use_distributed_sampler": False},
    ),
    "clamps": _Mistake(
        "written to in on_train_batch_end (layers.0.weight, layers.0.bias)", model=_Clamps
    ),
    "teaches": _Mistake(_FROZEN, model=_Teaches),
    "teaches_together": _Mistake(_FROZEN, _GTC, _Teaches),
}


def _make(case: _Mistake) -> None:
    make_trainer(case.strategy(), **case.settings).fit(case.model(), case.data())


MISTAKES: Mistakes = {name: (partial(_make, case), case.says) for name, case in _CASES.items()}


@pytest.fixture(scope="module")
def errors() -> list[dict[str, str]]:
    return errors_by_rank(__name__, ranks=2)


@pytest.mark.parametrize("name", MISTAKES)
def test_unsupported_run_is_an_error_on_every_rank(errors: list[dict[str, str]], name: str) -> None:
    for rank in errors:
        assert rank[name].startswith("ValueError") and MISTAKES[name][1] in rank[name]


_TWO = partial(HIERARCHICAL, group_size=2, virtual_workers=2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (partial(BMUF, virtual_workers=0), "at least 1, got 0"),
        (
            partial(BMUF_GTC, group_size=2, virtual_workers=3),
            "must divide group_size or be a multiple of it, got virtual_workers=3",
        ),
        (partial(_TWO, block_sync=lh.BMUF(), broadcast_buffers=False), "broadcast_buffers=False"),
        (partial(_TWO, gradient_sync=lh.CommHook(print)), "CommHook"),
    ],
)
def test_settings_that_cannot_be_combined(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


class _Thaws(Net):
    """The first layer is frozen until the given epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.layers[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.layers[0].requires_grad_(self.current_epoch >= self.epoch)


def test_parameters_cannot_be_unfrozen_once_workers_have_trained() -> None:
    strategy = partial(BMUF, virtual_workers=2, block_size=50, find_unused_parameters=True)
    settings = {"data": loader(3, ranks=4), "max_epochs": 2}
    fit_on_ranks(2, strategy, partial(_Thaws, 0), **settings)
    for error in errors_on_ranks(2, strategy, partial(_Thaws, 1), **settings):
        assert "can't be combined with unfreezing" in error
