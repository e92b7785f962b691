"""Health of local models. It keeps NaN and inf out of the global model and its update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import Literal

from torch import Tensor

from lightning_hier.algorithms.kernels import all_finite
from lightning_hier.algorithms.weighting import GroupWeight, group_weights
from lightning_hier.comm.progress_record import named_ranks
from lightning_hier.comm.sharded_tensors import local_tensor
from lightning_hier.comm.tiers import RankLayout

OnNonfinite = Literal["error", "exclude"]
"""Action for a group whose model is not finite: an error, or exclusion from the mean."""

_ADVICE = "Lower the learning rate, clip gradients (gradient_clip_val), or check the batches there."


class NonFiniteModelError(RuntimeError):
    """A local model contains NaN or inf and must not enter the global model."""


class Nonfinite(IntFlag):
    """Parts of a local model that contain NaN or inf.

    ``UNFIT``: a buffer cannot be averaged, see :class:`ModuleBuffers`.
    """

    NOTHING = 0
    PARAMETERS = 1
    BUFFERS = 2
    OPTIMIZER = 4
    UNFIT = 8

    @property
    def text(self) -> str:
        """Names in messages."""
        words = {
            Nonfinite.PARAMETERS: "parameters",
            Nonfinite.BUFFERS: "averaged buffers",
            Nonfinite.OPTIMIZER: "state of the local optimizer",
        }
        return ", ".join(word for flag, word in words.items() if self & flag)


class SyncPoint(IntEnum):
    """Kind of a synchronisation of all ranks."""

    BLOCK = 1
    EVALUATION = 2
    TRAINING_END = 3
    CHECK = 4

    @property
    def text(self) -> str:
        """Name in messages."""
        return {
            SyncPoint.BLOCK: "the synchronisation of models at the end of a block",
            SyncPoint.EVALUATION: (
                "the evaluation of the global model (validation, checkpoint or end of an epoch)"
            ),
            SyncPoint.TRAINING_END: "the end of training",
            SyncPoint.CHECK: "the regular check of all ranks",
        }[self]


@dataclass(frozen=True)
class ModelHealth:
    """Health of the local model of one rank.

    Attributes:
        squares: sum of squares of the values in this rank's shard, without optimizer state.
        nonfinite: parts of the model, and of the averaged optimizer state, that are not finite.
        samples: samples of this rank in the local update of each fragment that was read.

    """

    squares: float = 0.0
    nonfinite: Nonfinite = Nonfinite.NOTHING
    samples: tuple[float, ...] = ()

    @classmethod
    def of_squares(cls, parameters: float, buffers: float, optimizer: float) -> ModelHealth:
        """Create it from sums of squares, which are NaN or inf if a value is."""
        finite = map(math.isfinite, (parameters, buffers, optimizer))
        return cls(parameters + buffers, _flags(finite))

    @classmethod
    def of_tensors(
        cls, parameters: Iterable[Tensor], buffers: Iterable[Tensor], optimizer: Iterable[Tensor]
    ) -> ModelHealth:
        """Create it from all values, without sums of squares."""
        # Of a DTensor, the part of this rank: the other parts are in the reports of their ranks.
        kinds = (parameters, buffers, optimizer)
        return cls(nonfinite=_flags(all(all_finite(local_tensor(t)) for t in ts) for ts in kinds))

    def __add__(self, other: ModelHealth) -> ModelHealth:
        """Combined health of both."""
        return ModelHealth(
            self.squares + other.squares,
            self.nonfinite | other.nonfinite,
            self.samples + other.samples,
        )


@dataclass(frozen=True)
class HealthReport:
    """State of a rank at a synchronisation, which all ranks exchange before any model.

    Attributes:
        point: a :class:`SyncPoint`.
        optimizer: index of the optimizer whose block ends, or -1 for all optimizers.
        steps: steps of this optimizer, or of all optimizers, since the start.
        squares: as in :class:`ModelHealth`.
        terminate: whether this rank has received SIGTERM.
        nonfinite: as in :class:`ModelHealth`.
        batches: number of batches of this epoch if none is left, otherwise -1.
        digest: digest of the synchronised parameters.
        samples: as in :class:`ModelHealth`, with zeros after the last fragment that was read. Empty
            if groups count equally.

    """

    point: int
    optimizer: int
    steps: int
    squares: float
    terminate: int
    nonfinite: int
    batches: int
    digest: int = 0
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Participation:
    """Groups that take part in a mean. All ranks agree on them before any model is sent.

    Attributes:
        mean_squares: mean over the participating groups of the squares of their models, with the
            weights of the first fragment that was read.
        healthy: number of averaged models, at least one.
        excluded: numbers of the excluded groups.
        takes_part: whether this rank's group takes part.
        first: number of the first participating group.
        weights: weights of this group in the mean of each fragment that was read. Empty if groups
            count equally, each with the weight ``1 / healthy``.

    """

    mean_squares: float
    healthy: int
    excluded: tuple[int, ...] = ()
    takes_part: bool = True
    first: int = 0
    weights: tuple[GroupWeight, ...] = ()

    @property
    def weight(self) -> float | None:
        """Weight of this group, or None if groups count equally."""
        return self.weights[0].weight if self.weights else None

    @property
    def effective(self) -> float:
        """Effective number of averaged models."""
        return self.weights[0].effective if self.weights else float(self.healthy)

    def of(self, fragment: int) -> Participation:
        """Participation in the mean of one of the fragments that were read, by its place there."""
        return replace(self, weights=self.weights[fragment : fragment + 1])  # perhaps empty


def decide_participation(
    reports: Sequence[HealthReport],
    layout: RankLayout,
    rank: int,
    on_nonfinite: OnNonfinite,
    *,
    models_per_rank: int = 1,
) -> Participation:
    """Find the groups whose models are averaged. Equal on every rank. Does not communicate.

    A group is excluded as a whole, because its ranks train one model.

    Args:
        reports: reports of all ranks.
        layout: groups of the ranks.
        rank: number of this rank.
        on_nonfinite: whether groups may be excluded.
        models_per_rank: models of different groups on each rank.

    Raises:
        NonFiniteModelError: a group must not be excluded, or none remains.

    """
    size, groups = layout.sizes
    excluded = {number // size for number in _nonfinite_ranks(reports)}
    healthy = (groups - len(excluded)) * models_per_rank
    if excluded and on_nonfinite == "error":
        raise NonFiniteModelError(
            f"{_finding(reports)}; it was kept out of the global model. {_ADVICE} "
            "on_nonfinite='exclude', for modules that are not divided inside groups, continues "
            "with the groups whose models are finite."
        )
    if not healthy:
        raise NonFiniteModelError(f"{_finding(reports)}: no group has a finite model. {_ADVICE}")
    included = [report for number, report in enumerate(reports) if number // size not in excluded]
    equal = Participation(
        sum(report.squares for report in included) / healthy,
        healthy,
        excluded=tuple(sorted(excluded)),
        takes_part=rank // size not in excluded,
        first=min(set(range(groups)) - excluded),
    )
    return equal if not reports[0].samples else _weighted(equal, reports, size, rank // size)


def _weighted(
    equal: Participation, reports: Sequence[HealthReport], size: int, group: int
) -> Participation:
    """The same participation, in which groups count by their samples."""
    members = [reports[start : start + size] for start in range(0, len(reports), size)]  # by group
    weights = [
        group_weights(
            [math.fsum(report.samples[i] for report in ranks) for ranks in members], equal.excluded
        )
        for i in range(len(reports[0].samples))
    ]
    squares = sum(
        counted.weight * sum(report.squares for report in ranks)
        for counted, ranks in zip(weights[0], members, strict=True)
        if counted.weight  # an excluded model may not be finite
    )
    of_group = tuple(of_fragment[group] for of_fragment in weights)
    return replace(equal, mean_squares=squares, weights=of_group)


def require_finite(reports: Sequence[HealthReport]) -> None:
    """Check the single model that all ranks train. Does not communicate.

    Raises:
        NonFiniteModelError: on every rank, if the model is not finite.

    """
    if _nonfinite_ranks(reports):
        raise NonFiniteModelError(f"{_finding(reports)}, and all ranks train it. {_ADVICE}")


def exclusion_warning(
    reports: Sequence[HealthReport], layout: RankLayout, participation: Participation
) -> str:
    """Warning about groups that are excluded from a mean."""
    point = SyncPoint(reports[0].point)
    ranks = layout.groups(0)
    groups = " and ".join(
        f"group {group} ({named_ranks(ranks[group])})" for group in participation.excluded
    )
    consequence = (
        " Such a group starts the next block from the global model, with new optimizer state and "
        "residuals."
        if point == SyncPoint.BLOCK
        else ""
    )
    left = "were" if len(participation.excluded) > 1 else "was"
    return (
        f"At {point.text}, after {reports[0].steps} steps, {groups} {left} excluded from the mean "
        f"of the models: {_finding(reports)}.{consequence}"
    )


def _nonfinite_ranks(reports: Sequence[HealthReport]) -> list[int]:
    return [rank for rank, report in enumerate(reports) if report.nonfinite]


def _finding(reports: Sequence[HealthReport]) -> str:
    ranks, parts = _nonfinite_ranks(reports), Nonfinite.NOTHING
    for rank in ranks:
        parts |= Nonfinite(reports[rank].nonfinite)
    return (
        f"the local model of {named_ranks(ranks)} holds NaN or inf "
        f"after {reports[ranks[0]].steps} steps ({parts.text})"
    )


def _flags(finite: Iterable[bool]) -> Nonfinite:
    flags = (Nonfinite.PARAMETERS, Nonfinite.BUFFERS, Nonfinite.OPTIMIZER)
    nonfinite = Nonfinite.NOTHING
    for flag, is_finite in zip(flags, finite, strict=True):
        nonfinite |= Nonfinite.NOTHING if is_finite else flag
    return nonfinite
