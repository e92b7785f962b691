"""Errors of ranks that reach different synchronisations, or train different parameters."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_hier.algorithms.arguments import counted
from lightning_hier.comm.blocks.health import HealthReport, SyncPoint
from lightning_hier.comm.progress_record import EveryRanksError, named_ranks, ranks_by_value

# Maximum number of parameters that an error names.
_MOST_NAMES = 5

SAME_BATCHES = (
    "drop_last, a DistributedSampler, limit_train_batches, or a stream that is repeated without end"
)
"""Ways to give every rank the same number of batches, for messages."""


class OutOfStepError(EveryRanksError):
    """Ranks reached different synchronisations, or synchronise different parameters."""


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
        f"give every rank the same number of batches ({SAME_BATCHES}), and validate or save on all "
        "ranks at the same step."
    )
