"""What cannot be combined with several workers on a rank: each one clear error before training."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, EMAWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer


class _Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter([])


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
    """As a critic that is clamped after its step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for own in self.layers[0].parameters():
            own.data.clamp_(-0.1, 0.1)


class _Teaches(Net):
    """Has a mean teacher that follows in every training step."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(4, 8).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.layers[0].weight, 0.1)
        return super().training_step(batch, batch_idx)


class _TwoOptimizers(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(own.parameters(), lr=0.1) for own in self.layers[::2]]


class _ByHand(Net):
    def __init__(self, steps: int = 1) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.steps = steps

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        for _ in range(self.steps):
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()


class _Unlike(_ByHand):
    """Decides by its data whether it steps."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        own = round(float(batch[0].sum()), 4)
        self.first = getattr(self, "first", own)
        if own == self.first:
            super().training_step(batch, batch_idx)


_BMUF = partial(lh.BMUFStrategy, virtual_workers=2, warmup_steps=0)
_GTC = partial(lh.GTCStrategy, virtual_workers=2, warmup_steps=0, density=0.01)
_SCALED = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}

# Strategy, model and settings of the Trainer.
MISTAKES: dict[str, tuple[Any, Callable[[], Net], dict[str, Any]]] = {
    "stream": (_BMUF, Net, {}),
    "sampler": (_BMUF, Net, {}),
    "hook": (_BMUF, _Transfers, {}),
    "precision": (_BMUF, Net, _SCALED),
    "ema": (_BMUF, Net, {"callbacks": [EMAWeightAveraging()]}),
    "fetches": (_BMUF, _Fetches, {"callbacks": [BackboneFinetuning()]}),
    "several": (_BMUF, Net, {}),
    "one_in_a_list": (_BMUF, Net, {}),
    "uneven": (_BMUF, Net, {"use_distributed_sampler": False}),
    "clamps": (_BMUF, _Clamps, {}),
    "teaches": (_BMUF, _Teaches, {}),
    "teaches_together": (_GTC, _Teaches, {}),
    "optimizers": (_BMUF, _TwoOptimizers, {}),
    "twice": (_BMUF, partial(_ByHand, 2), {}),
    "unlike": (_BMUF, _Unlike, {}),
    "by_hand": (_GTC, _ByHand, {}),
    "by_hand_warm": (partial(_BMUF, warmup_steps=2), _ByHand, {}),
    "sync_batchnorm": (_GTC, Net, {"sync_batchnorm": True}),
    "group_size": (
        partial(lh.BMUFGTCStrategy, group_size=8, virtual_workers=2, warmup_steps=0, density=0.01),
        Net,
        {},
    ),
}


class _Dealt(DistributedSampler[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, num_replicas=2, rank=int(os.environ["RANK"]))


class _Uneven(Sampler[int]):
    """Each rank takes what is left to it."""

    def __init__(self) -> None:
        self.num_replicas, self.rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])

    def __iter__(self) -> Any:
        return iter(range(self.rank, 5, self.num_replicas))

    def __len__(self) -> int:
        return len(list(iter(self)))


DATA: dict[str, Any] = {
    "several": lambda: {"one": loader(3), "other": loader(3)},
    "one_in_a_list": lambda: [loader(3)],
    "uneven": lambda: DataLoader(loader(3).dataset, sampler=_Uneven()),
    "stream": lambda: DataLoader(_Stream()),
    "sampler": lambda: DataLoader(loader(3).dataset, sampler=_Dealt(loader(3).dataset)),
}


def _mistake(what: str) -> None:
    strategy, model, settings = MISTAKES[what]
    data = DATA.get(what, lambda: loader(3))()
    make_trainer(strategy(), **settings).fit(model(), data)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("by_hand", "manual optimization in groups of several workers"),
        ("by_hand_warm", "manual optimization in groups of several workers or a warm-up"),
        ("twice", "can't be combined with 2 optimizer steps in one training_step"),
        ("unlike", "took 1 optimizer steps as the first worker of this rank and 0"),
        ("sync_batchnorm", "sync_batchnorm=True in groups of several workers"),
        (
            "group_size",
            "the number of workers, got group_size=8 with 4 workers; sizes that do: 1, 2, 4",
        ),
        (
            "stream",
            "virtual_workers=2 divides the training data among 4 workers, and it is unknown how",
        ),
        ("sampler", "_Dealt divides the training data when it is created"),
        ("hook", "on_before_batch_transfer (use on_after_batch_transfer)"),
        ("precision", "precision='16-mixed' (use 'bf16-mixed')"),
        ("ema", "can't be combined with EMAWeightAveraging"),
        ("fetches", "BackboneFinetuning, training_step(dataloader_iter) (use training_step(batch"),
        ("several", "needs one DataLoader of training data, got a dict of 2: combine"),
        ("one_in_a_list", "one DataLoader of training data, got a list of 1: pass it directly"),
        ("uneven", "the workers have different numbers of training batches: 2 on worker 0; 1 on"),
        ("clamps", "written to in on_train_batch_end (layers.0.weight, layers.0.bias)"),
        ("teaches", "frozen parameters were written to in a step (teacher.weight)"),
        pytest.param(
            "teaches_together",
            "frozen parameters were written to in a step (teacher.weight)",
            marks=pytest.mark.slow,
        ),
        ("optimizers", "can't be combined with 2 optimizers"),
    ],
)
def test_what_cannot_be_trained_is_an_error_on_every_rank(what: str, says: str) -> None:
    for error in run_ranks(_mistake, 2, what, expect_failure=True):
        assert error.startswith("ValueError") and says in error


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: lh.BMUFStrategy(virtual_workers=0, warmup_steps=0, block_size=50),
            "at least 1, got 0",
        ),
        (
            lambda: lh.BMUFStrategy(
                virtual_workers=2, on_nonfinite="exclude", warmup_steps=0, block_size=50
            ),
            "'exclude'",
        ),
        (
            lambda: lh.BMUFStrategy(
                virtual_workers=2, uneven_batches="join", warmup_steps=0, block_size=50
            ),
            "'join'",
        ),
        (
            lambda: lh.BMUFGTCStrategy(
                group_size=2, virtual_workers=3, warmup_steps=0, density=0.01, block_size=50
            ),
            "must divide group_size or be a multiple of it, got virtual_workers=3",
        ),
        (
            lambda: lh.HierarchicalStrategy(
                group_size=2,
                block_sync=lh.BMUF(block_size=50),
                virtual_workers=2,
                broadcast_buffers=False,
                warmup_steps=0,
            ),
            "broadcast_buffers=False",
        ),
        (
            lambda: lh.HierarchicalStrategy(
                group_size=2, gradient_sync=lh.CommHook(print), virtual_workers=2, warmup_steps=0
            ),
            "CommHook",
        ),
    ],
)
def test_settings_that_cannot_be_combined(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


class _Thaws(Net):
    """All but the last layer is frozen until an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch
        self.layers[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.layers[0].requires_grad_(self.current_epoch >= self.epoch)


def _thaw(epoch: int) -> None:
    strategy = lh.BMUFStrategy(
        virtual_workers=2, find_unused_parameters=True, warmup_steps=0, block_size=50
    )
    make_trainer(strategy, max_epochs=2).fit(_Thaws(epoch), loader(3, ranks=4))


def test_parameters_cannot_be_unfrozen_once_workers_have_trained() -> None:
    run_ranks(_thaw, 2, 0)
    for error in run_ranks(_thaw, 2, 1, expect_failure=True):
        assert "can't be combined with unfreezing" in error
