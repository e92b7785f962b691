"""Workers with different numbers of batches, under a Trainer and in the twins.

A worker without further batches takes no steps. Its model is part of the mean without change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.equivalence.cases import Case, make_twin
from tests.equivalence.tasks import B_PERIOD, Batch, batch_of, loader, loss_on
from tests.equivalence.twins import Twin, Values


class _Stream(IterableDataset[Batch]):
    def __init__(self, rank: int, count: int) -> None:
        self._rank, self._count = rank, count

    def __iter__(self) -> Iterator[Batch]:
        return (batch_of(self._rank, number) for number in range(self._count))


def batches_of(case: Case, rank: int) -> DataLoader[Batch]:
    """The batches of a rank in an epoch."""
    count = case.counts[rank] if case.counts else case.batches
    if case.unknown:
        return DataLoader(_Stream(rank, count), batch_size=None)
    return loader(rank, count)


@dataclass
class Joined:
    """Records of one worker of a twin.

    Attributes:
        local: parameters after each batch. For its last batch of an epoch, those at the epoch's
            end, after the last batch of all workers.
        epoch_ends: the global model at the end of every epoch.
        steps: number of steps of each optimizer at the end of every epoch.

    """

    local: list[Values] = field(default_factory=list)
    epoch_ends: list[Values] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)


def twin_joined(case: Case) -> list[Joined]:
    """Train the twin, and return the records of its workers. All have the same global model."""
    twin = make_twin(case)
    records = [Joined() for _ in case.counts]
    for _ in range(case.epochs):
        _epoch(case, twin, records)
        for record in records:
            record.epoch_ends.append(twin.global_model())
            record.steps.append([block.steps for block in twin.blocks])
    return records


def _epoch(case: Case, twin: Twin, records: list[Joined]) -> None:
    size = case.accumulate
    for step in range(-(-max(case.counts) // size)):
        for worker, count, rank in zip(twin.workers, case.counts, range(len(records)), strict=True):
            for number in range(step * size, min((step + 1) * size, count)):
                for part in ("a", "b") if case.net == "pair" else ("",):
                    if part != "b" or number % B_PERIOD == B_PERIOD - 1:
                        loss = loss_on(batch_of(rank, number))
                        worker.add_gradient(_on(part, loss), 1.0 / size)
        twin.step()
        if case.net == "pair" and step % B_PERIOD == B_PERIOD - 1:
            twin.step(1)
        for rank, record in enumerate(records):
            last = -(-case.counts[rank] // size) - 1
            if step < last:
                record.local.append(twin.local_model(rank))
    for rank, record in enumerate(records):
        record.local.append(twin.local_model(rank))


def _on(part: str, loss: Callable[[nn.Module], Tensor]) -> Callable[[nn.Module], Tensor]:
    return (lambda net: loss(getattr(net, part))) if part else loss
