"""Workers with different numbers of batches, under a Trainer and in the twins.

A worker that has run out of batches takes no steps, and its model counts in the mean as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.equivalence.adam_cases import AdamCase, AdamRegression
from tests.equivalence.adam_twins import AdamTwin
from tests.equivalence.cases import (
    Case,
    make_module,
    make_trainer,
    make_twin,
    rank_number,
    state_of,
)
from tests.equivalence.tasks import B_PERIOD, Batch, batch_of, loader, loss_on, make_net
from tests.equivalence.twins import Twin, Values

Losses = list[Callable[[nn.Module], Tensor]]


@dataclass(frozen=True, kw_only=True)
class UnevenCase(Case):
    """A run; ``counts`` are the batches of each rank in one epoch, ``unknown`` hides them."""

    counts: tuple[int, ...] = ()
    unknown: bool = False


@dataclass(frozen=True, kw_only=True)
class UnevenAdamCase(AdamCase):
    """The same with one of the Adams."""

    counts: tuple[int, ...] = ()
    unknown: bool = False


AnyCase = UnevenCase | UnevenAdamCase


@dataclass
class Told:
    """What a rank, or a worker of a twin, saw.

    Attributes:
        local: its parameters after each of its batches, epoch by epoch; after its last batch of an
            epoch as they are when all ranks have had theirs.
        looked: the network's state at the ends of epochs.
        validated: the same in validation.
        steps: counted for each optimizer at the ends of epochs.
        blocks: synchronised so far, after ``fit``.
        final: the network's state after ``fit``.

    """

    local: list[list[Values]] = field(default_factory=list)
    looked: list[Values] = field(default_factory=list)
    validated: list[Values] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    final: Values = field(default_factory=dict)


class Notes(Callback):
    """Fills in a :class:`Told`."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def on_train_epoch_start(self, *_: Any) -> None:
        self._told.local.append([])

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        named = module.net.named_parameters()
        self._told.local[-1].append({name: value.detach().clone() for name, value in named})

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._told.validated.append(state_of(module.net))

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._told.looked.append(state_of(module.net))
        counts = trainer.strategy._fit_session.worker.steps
        self._told.steps.append([count.total for count in counts])
        self._told.blocks = [count.blocks for count in counts]


class _Stream(IterableDataset[Batch]):
    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._count = rank, count

    def __iter__(self) -> Iterator[Batch]:
        return (batch_of(self._rank, number) for number in range(self._count))


def batches_of(case: AnyCase, rank: int) -> DataLoader[Batch]:
    """The batches of a rank."""
    count = case.counts[rank]
    if case.unknown:
        return DataLoader(_Stream(rank, count), batch_size=None)
    return loader(rank, count)


def run(case: AnyCase, **more: Any) -> Told:
    """Train on this rank; every rank draws other weights, since rank 0's count."""
    pl.seed_everything(rank_number(), verbose=False)
    module: pl.LightningModule
    if isinstance(case, UnevenAdamCase):
        module = AdamRegression(make_net(case.net, rank_number()), case)
    else:
        module = make_module(case, rank_number())
    told = Told()
    trainer = make_trainer(case, callbacks=[Notes(told)], **more)
    trainer.fit(module, batches_of(case, rank_number()), loader(0, 1))
    told.final = state_of(module.net)
    return told


def run_all(cases: Sequence[AnyCase]) -> dict[str, Told]:
    """Train one case after the other on this rank."""
    return {case.name: run(case) for case in cases}


def twin_of(case: AnyCase) -> list[Told]:
    """What the twin's workers see; all have the same global model."""
    twin: Twin
    if isinstance(case, UnevenAdamCase):
        twin = AdamTwin(make_net(case.net), case.recipe, [case.rules()])
    else:
        twin = make_twin(case)
    tolds = [Told() for _ in case.counts]
    for _ in range(case.epochs):
        _epoch(case, twin, tolds)
        for told in tolds:
            told.looked.append(twin.global_model())
            told.steps.append([block.steps for block in twin.blocks])
    for told in tolds:
        told.validated, told.final = told.looked, twin.global_model()
    return tolds


def _epoch(case: AnyCase, twin: Twin, tolds: list[Told]) -> None:
    for told in tolds:
        told.local.append([])
    size = case.accumulate
    for step in range(-(-max(case.counts) // size)):
        for worker, count, rank in zip(twin.workers, case.counts, range(len(tolds)), strict=True):
            for number in range(step * size, min((step + 1) * size, count)):
                for part in ("a", "b") if case.net == "pair" else ("",):
                    if part != "b" or number % B_PERIOD == B_PERIOD - 1:
                        loss = loss_on(batch_of(rank, number))
                        worker.add_gradient(_on(part, loss), 1.0 / size)
        twin.step()
        if case.net == "pair" and step % B_PERIOD == B_PERIOD - 1:
            twin.step(1)
        for rank, told in enumerate(tolds):
            last = -(-case.counts[rank] // size) - 1
            if step < last:
                told.local[-1] += [twin.local_model(rank)]
    for rank, told in enumerate(tolds):
        told.local[-1] += [twin.local_model(rank)]


def _on(part: str, loss: Callable[[nn.Module], Tensor]) -> Callable[[nn.Module], Tensor]:
    return (lambda net: loss(getattr(net, part))) if part else loss
