"""Health reports: models with NaN or inf, and ranks out of step, end a run before any is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

from torch import Tensor

from lightning_hier.algorithms.arguments import counted
from lightning_hier.algorithms.squares import all_finite
from lightning_hier.algorithms.weighting import GroupWeight, group_weights
from lightning_hier.comm.progress_record import EveryRanksError, named_ranks, ranks_by_value
from lightning_hier.comm.sharded_tensors import local_tensor

SAME_BATCHES = (
    "drop_last, a DistributedSampler, limit_train_batches, or a stream that is repeated without end"
)
"""Ways to give every rank the same number of batches, for messages."""


class NonFiniteModelError(RuntimeError):
    """A local model contains NaN or inf and must not enter the global model."""


class OutOfStepError(EveryRanksError):
    """Ranks reached different synchronisations, or synchronise different parameters."""


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


class HealthReport(NamedTuple):
    """State of a rank at a synchronisation, which all ranks exchange before any model.

    Attributes:
        point: a :class:`SyncPoint`.
        optimizer: index of the optimizer whose block ends, or -1 for all optimizers.
        steps: steps of this optimizer, or of all optimizers, since the start.
        terminate: whether this rank has received SIGTERM.
        nonfinite: as in :class:`ModelHealth`.
        batches: number of batches of this epoch if none is left, otherwise -1.
        digest: digest of the synchronised parameters.
        squares: as in :class:`ModelHealth`.
        samples: as in :class:`ModelHealth`, with zeros after the last fragment that was read. Empty
            if groups count equally.

    """

    point: int
    optimizer: int
    steps: int
    terminate: int
    nonfinite: int
    batches: int
    digest: int = 0
    squares: float = 0.0
    samples: tuple[float, ...] = ()

    @classmethod
    def of_row(cls, row: Sequence[float]) -> HealthReport:
        """The report whose values, and then its samples, are in a row of numbers."""
        values: list[Any] = [*map(int, row[:7]), row[7], tuple(row[8:])]
        return cls(*values)


@dataclass(frozen=True)
class Averaging:
    """How the models of the groups are averaged. All ranks agree on it before any model is sent.

    Attributes:
        mean_squares: mean over the groups of the squares of their models, with the weights of the
            first fragment that was read.
        models: number of averaged models.
        weights: weights of this group in the mean of each fragment that was read. Empty if groups
            count equally, each with the weight ``1 / models``.

    """

    mean_squares: float
    models: int
    weights: tuple[GroupWeight, ...] = ()

    @property
    def weight(self) -> float | None:
        """Weight of this group, or None if groups count equally."""
        return self.weights[0].weight if self.weights else None

    @property
    def effective(self) -> float:
        """Effective number of averaged models."""
        return self.weights[0].effective if self.weights else float(self.models)

    def of(self, fragment: int) -> Averaging:
        """That of one of the fragments that were read, by its place there."""
        return replace(self, weights=self.weights[fragment : fragment + 1])  # perhaps empty

    @classmethod
    def agreed(
        cls, reports: Sequence[HealthReport], size: int, rank: int, models: int
    ) -> Averaging:
        """What follows from the reports of all ranks. Does not communicate.

        Args:
            reports: reports of all ranks.
            size: ranks of a group.
            rank: number of this rank.
            models: number of averaged models.

        """
        groups = [reports[start : start + size] for start in range(0, len(reports), size)]
        squares = [sum(report.squares for report in ranks) for ranks in groups]
        if not reports[0].samples:
            return cls(sum(squares) / models, models)
        weights = [
            group_weights([math.fsum(report.samples[i] for report in ranks) for ranks in groups])
            for i in range(len(reports[0].samples))
        ]
        shares = (of_group.weight for of_group in weights[0])
        mean = sum(p * own for p, own in zip(shares, squares, strict=True))
        return cls(mean, models, tuple(of_fragment[rank // size] for of_fragment in weights))


def require_common_point(reports: Sequence[HealthReport]) -> None:
    """Check that all ranks are at one point.

    Raises:
        OutOfStepError: they are at different points.

    """
    if len({(report.point, report.optimizer, report.steps) for report in reports}) > 1:
        raise OutOfStepError(_positions(reports))


def _positions(reports: Sequence[HealthReport]) -> str:
    ranks = ranks_by_value((r.point, r.optimizer, r.steps, r.batches) for r in reports)
    positions = "; ".join(
        f"{named_ranks(members)} at {SyncPoint(point).text}"
        f"{f' of optimizer {optimizer}' if optimizer > 0 else ''} after {counted(steps, 'step')}"
        f"{f', with no batch left after {batches} in this epoch' if batches >= 0 else ''}"
        for (point, optimizer, steps, batches), members in ranks.items()
    )
    return (
        f"the ranks are out of step: {positions}. All ranks must take the same number of steps: "
        f"give every rank the same number of batches ({SAME_BATCHES}), and step, validate and save "
        "on all ranks, at the same step."
    )


def require_finite(reports: Sequence[HealthReport], size: int) -> None:
    """Check the models of all ranks. Does not communicate.

    Args:
        reports: reports of all ranks.
        size: ranks of a group.

    Raises:
        NonFiniteModelError: on every rank, if a model is not finite.

    """
    found = ranks_by_value(Nonfinite(report.nonfinite) for report in reports)
    found.pop(Nonfinite.NOTHING, None)
    if not found:
        return

    def named(ranks: Sequence[int]) -> str:
        groups = sorted({rank // size for rank in ranks})
        inside = f" ({named_ranks(groups, 'group')})" if len(reports) > size else ""
        return f"{named_ranks(ranks)}{inside}"

    listed = "; ".join(f"{parts.text} of {named(ranks)}" for parts, ranks in found.items())
    after = counted(reports[min(found.values())[0]].steps, "step")
    raise NonFiniteModelError(
        f"NaN or inf after {after} in {listed}: no model was sent. Lower the learning rate, clip "
        "gradients (gradient_clip_val), or check the batches there."
    )


def _flags(finite: Iterable[bool]) -> Nonfinite:
    flags = (Nonfinite.PARAMETERS, Nonfinite.BUFFERS, Nonfinite.OPTIMIZER)
    nonfinite = Nonfinite.NOTHING
    for flag, is_finite in zip(flags, finite, strict=True):
        nonfinite |= Nonfinite.NOTHING if is_finite else flag
    return nonfinite
