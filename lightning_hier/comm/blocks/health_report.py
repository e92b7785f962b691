"""What ranks tell each other at the start of a synchronisation, before any model is sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum

import torch

from lightning_hier.comm.channel import Channel


class SyncPoint(IntEnum):
    """Where in training a rank comes to a synchronisation."""

    BLOCK = 1
    EVALUATION = 2
    TRAINING_END = 3
    CHECK = 4
    OUT_OF_DATA = 5

    @property
    def text(self) -> str:
        """For people."""
        return {
            SyncPoint.BLOCK: "the synchronisation of models at the end of a block",
            SyncPoint.EVALUATION: (
                "the evaluation of the global model (validation, checkpoint or end of an epoch)"
            ),
            SyncPoint.TRAINING_END: "the end of training",
            SyncPoint.CHECK: "the regular check of all ranks",
            SyncPoint.OUT_OF_DATA: "the end of its batches",
        }[self]


class OutOfStepError(RuntimeError):
    """Ranks have come to different synchronisations, so they would wait for each other for ever."""


@dataclass(frozen=True)
class HealthReport:
    """One rank's state at a synchronisation.

    Attributes:
        place: a :class:`Place`.
        optimizer: index of the optimizer whose block ends; -1 where all are meant.
        steps: steps of that optimizer, or of all of them, since the start.
        squares: sum of the squares of the part of the local model that this rank carries across.
        terminate: whether this rank has received SIGTERM.
        nonfinite: what of the local model can't be averaged, a ``Nonfinite``.
        out_after: if it has no batches left in this epoch, how many it had, else -1.
        digest: of the parameters that it synchronises.

    """

    place: int
    optimizer: int
    steps: int
    squares: float
    terminate: int
    nonfinite: int
    out_after: int
    digest: int = 0

    @classmethod
    def of_row(cls, row: list[float]) -> HealthReport:
        """From one row of the exchange."""
        place, optimizer, steps = map(int, row[:3])
        return cls(place, optimizer, steps, row[3], *map(int, row[4:]))


def exchange(own: HealthReport, world: Channel, device: torch.device) -> list[HealthReport]:
    """Tell all ranks where this one is, and learn where they are.

    A collective of the world: every rank must call it.
    """
    row = torch.tensor(astuple(own), dtype=torch.float64, device=device)
    rows = row.new_empty(world.size * row.numel())
    world.all_gather(rows, row, "status").wait()
    return [HealthReport.of_row(values) for values in rows.view(world.size, -1).tolist()]


def common_place(statuses: Sequence[HealthReport]) -> HealthReport | None:
    """Where the ranks are that have batches; None where none has any left in this epoch.

    The same on every rank; no communication.

    Raises:
        OutOfStepError: they are at different places, or at one that others can't come to who wait
            at the end of their batches.

    """
    active = [status for status in statuses if status.place != SyncPoint.OUT_OF_DATA]
    places = {(status.place, status.optimizer, status.steps) for status in active}
    joined = 0 < len(active) < len(statuses)
    if len(places) > 1 or (joined and active[0].place != SyncPoint.BLOCK):
        raise OutOfStepError(_out_of_step(statuses))
    return active[0] if active else None


def _out_of_step(statuses: Sequence[HealthReport]) -> str:
    ranks: defaultdict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for rank, status in enumerate(statuses):
        ranks[status.place, status.optimizer, status.steps, status.out_after].append(rank)
    said = "; ".join(
        f"rank{'s' * (len(members) > 1)} {span(members)} at {SyncPoint(place).text}"
        f"{f' of optimizer {optimizer}' if optimizer > 0 else ''} after {steps} steps"
        f"{f', with no batch left after {out_after} in this epoch' if out_after >= 0 else ''}"
        for (place, optimizer, steps, out_after), members in ranks.items()
    )
    if any(status.place == SyncPoint.OUT_OF_DATA for status in statuses):
        return (
            "some ranks wait at the end of their batches, and others come to something else than "
            f"a synchronisation of models: {said}. With uneven_batches='join' validate and save at "
            "the ends of epochs, and end training there."
        )
    way_out = (
        " uneven_batches='join' has ranks that run out of batches wait for the others."
        if len({status.out_after >= 0 for status in statuses}) > 1
        else ""
    )
    return (
        f"the ranks are out of step: {said}. All ranks must take the same number of steps: give "
        "every rank the same number of batches (drop_last, a DistributedSampler, or "
        f"limit_train_batches), and validate or save on all ranks at the same step.{way_out}"
    )


def span(ranks: Sequence[int]) -> str:
    """Numbers of ranks or groups, for people."""
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} ranks from {ranks[0]}"
