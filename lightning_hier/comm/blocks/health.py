"""Which models may enter the mean: NaN and inf never reach the global model or its update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Literal

from torch import Tensor

from lightning_hier.algorithms.sums import all_finite
from lightning_hier.comm.blocks.health_report import HealthReport, SyncPoint, span
from lightning_hier.comm.tiers import RankLayout

OnNonfinite = Literal["error", "exclude"]
"""What becomes of a group whose model is not finite: it ends training, or is left out."""

_ADVICE = (
    "Lower the learning rate, clip gradients (gradient_clip_val), or look for bad batches there."
)


class NonFiniteModelError(RuntimeError):
    """A local model holds NaN or inf and must not enter the global model."""


class Nonfinite(IntFlag):
    """What of a local model holds NaN or inf; or that buffers of it can't be averaged at all."""

    NOTHING = 0
    PARAMETERS = 1
    BUFFERS = 2
    OPTIMIZER = 4
    UNFIT = 8

    @property
    def text(self) -> str:
        """For people."""
        words = {
            Nonfinite.PARAMETERS: "parameters",
            Nonfinite.BUFFERS: "averaged buffers",
            Nonfinite.OPTIMIZER: "state of the local optimizer",
        }
        return ", ".join(word for flag, word in words.items() if self & flag)


@dataclass(frozen=True)
class ModelHealth:
    """What a rank finds in its local model.

    Attributes:
        squares: sum of the squares of the values that it carries across, state left out.
        nonfinite: what of the model, and of the state that travels along, is not finite.

    """

    squares: float = 0.0
    nonfinite: Nonfinite = Nonfinite.NOTHING

    @classmethod
    def of_squares(cls, parameters: float, buffers: float, optimizer: float) -> ModelHealth:
        """From the sums of the squares of the three, which are NaN or inf where a value is."""
        finite = map(math.isfinite, (parameters, buffers, optimizer))
        return cls(parameters + buffers, _flags(finite))

    @classmethod
    def of_tensors(
        cls, parameters: Iterable[Tensor], buffers: Iterable[Tensor], optimizer: Iterable[Tensor]
    ) -> ModelHealth:
        """By looking at all values, without their squares."""
        kinds = (parameters, buffers, optimizer)
        return cls(nonfinite=_flags(all(all_finite(t.detach()) for t in own) for own in kinds))

    def __add__(self, other: ModelHealth) -> ModelHealth:
        """Of both."""
        return ModelHealth(self.squares + other.squares, self.nonfinite | other.nonfinite)


@dataclass(frozen=True)
class Participation:
    """What all ranks know before any model is sent.

    Attributes:
        squares: sum over the healthy groups of the squares of their models.
        healthy: number of groups whose models are averaged, at least one.
        excluded: numbers of the others.
        takes_part: whether this rank's group is healthy.
        first: number of the first healthy group.

    """

    squares: float
    healthy: int
    excluded: tuple[int, ...] = ()
    takes_part: bool = True
    first: int = 0


def judge(
    statuses: Sequence[HealthReport],
    layout: RankLayout,
    rank: int,
    on_nonfinite: OnNonfinite,
    *,
    models_per_rank: int = 1,
) -> Participation:
    """Find the groups whose models may be averaged. The same on every rank; no communication.

    A group is sick as a whole: its ranks train one model.

    Args:
        statuses: of all ranks.
        layout: which rank is in which group.
        rank: this one.
        on_nonfinite: whether sick groups may be left out.
        models_per_rank: models of different groups that a rank trains in turns.

    Raises:
        NonFiniteModelError: a group is sick and may not be left out, or all are.

    """
    group_of = [layout.coordinates(number)[1] for number in range(layout.world_size)]
    sick = {group_of[number] for number in _sick(statuses)}
    healthy = (layout.sizes[1] - len(sick)) * models_per_rank
    if sick and on_nonfinite == "error":
        raise NonFiniteModelError(
            f"{_finding(statuses)}; it was kept out of the global model. {_ADVICE} "
            "on_nonfinite='exclude' goes on with the groups that are healthy."
        )
    if not healthy:
        raise NonFiniteModelError(f"{_finding(statuses)}: no group is healthy. {_ADVICE}")
    squares = sum(
        status.squares
        for status, group in zip(statuses, group_of, strict=True)
        if group not in sick
    )
    first = min(set(group_of) - sick)
    return Participation(squares, healthy, tuple(sorted(sick)), group_of[rank] not in sick, first)


def require_finite(statuses: Sequence[HealthReport]) -> None:
    """Check the model where all ranks train one. The same on every rank; no communication.

    Raises:
        NonFiniteModelError: it is not finite.

    """
    if _sick(statuses):
        raise NonFiniteModelError(f"{_finding(statuses)}, and all ranks train it. {_ADVICE}")


def exclusion(
    statuses: Sequence[HealthReport], layout: RankLayout, participation: Participation
) -> str:
    """What to warn of where groups are left out."""
    place = SyncPoint(statuses[0].place)
    said = " and ".join(
        f"group {group} (rank{'s' * (layout.sizes[0] > 1)} "
        f"{span([r for r in range(layout.world_size) if layout.coordinates(r)[1] == group])})"
        for group in participation.excluded
    )
    then = (
        " Such a group starts the next block from the global model, its optimizer and residuals "
        "anew."
        if place == SyncPoint.BLOCK
        else ""
    )
    left = "were" if len(participation.excluded) > 1 else "was"
    return (
        f"At {place.text}, after {statuses[0].steps} steps, {said} {left} left out of the mean of "
        f"the models: {_finding(statuses)}.{then}"
    )


def _sick(statuses: Sequence[HealthReport]) -> list[int]:
    return [rank for rank, status in enumerate(statuses) if status.nonfinite]


def _finding(statuses: Sequence[HealthReport]) -> str:
    ranks, found = _sick(statuses), Nonfinite.NOTHING
    for rank in ranks:
        found |= Nonfinite(statuses[rank].nonfinite)
    return (
        f"the local model of rank{'s' * (len(ranks) > 1)} {span(ranks)} holds NaN or inf "
        f"after {statuses[ranks[0]].steps} steps ({found.text})"
    )


def _flags(finite: Iterable[bool]) -> Nonfinite:
    flags = (Nonfinite.PARAMETERS, Nonfinite.BUFFERS, Nonfinite.OPTIMIZER)
    found = Nonfinite.NOTHING
    for flag, good in zip(flags, finite, strict=True):
        found |= Nonfinite.NOTHING if good else flag
    return found
