"""Errors of ranks that reach different synchronisations, or train different parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_hier.comm.blocks.health import HealthReport, SyncPoint
from lightning_hier.comm.progress_record import named_ranks, ranks_by_value

# Maximum number of parameters that an error names.
_MOST_NAMES = 5


class OutOfStepError(RuntimeError):
    """Ranks reached different synchronisations, or synchronise different parameters."""


def require_common_point(reports: Sequence[HealthReport]) -> list[HealthReport]:
    """Reports of the ranks that have batches left in this epoch, which must be at one point.

    Raises:
        OutOfStepError: they are at different points, or not at the end of a block while other ranks
            have no batches left.

    """
    active = [report for report in reports if report.point != SyncPoint.OUT_OF_DATA]
    points = {(report.point, report.optimizer, report.steps) for report in active}
    # Ranks without batches can only join the end of a block, not an evaluation or a save.
    joined = 0 < len(active) < len(reports)
    if len(points) > 1 or (joined and active[0].point != SyncPoint.BLOCK):
        raise OutOfStepError(_positions(reports))
    return active


def _positions(reports: Sequence[HealthReport]) -> str:
    ranks = ranks_by_value((r.point, r.optimizer, r.steps, r.batches) for r in reports)
    positions = "; ".join(
        f"{named_ranks(members)} at {SyncPoint(point).text}"
        f"{f' of optimizer {optimizer}' if optimizer > 0 else ''} after {steps} steps"
        f"{f', with no batch left after {batches} in this epoch' if batches >= 0 else ''}"
        for (point, optimizer, steps, batches), members in ranks.items()
    )
    if any(report.point == SyncPoint.OUT_OF_DATA for report in reports):
        return (
            "some ranks wait at the end of their batches, but others are not at a synchronisation "
            f"of models: {positions}. With uneven_batches='join', validate and save at the ends of "
            "epochs, and end training there."
        )
    way_out = (
        " With uneven_batches='join', ranks that run out of batches join the others."
        if len({report.batches >= 0 for report in reports}) > 1
        else ""
    )
    return (
        f"the ranks are out of step: {positions}. All ranks must take the same number of steps: "
        "give every rank the same number of batches (drop_last, a DistributedSampler, or "
        f"limit_train_batches), and validate or save on all ranks at the same step.{way_out}"
    )


def different_parameters(entries: Sequence[Mapping[str, str]]) -> str:
    """Message about parameters that ranks train differently.

    Args:
        entries: kind of each trained parameter by name, for each rank.

    """
    names = dict.fromkeys(name for kinds in entries for name in kinds)
    differences = []
    for name in names:
        ranks = ranks_by_value(kinds.get(name) for kinds in entries)
        if len(ranks) > 1:
            texts = (f"{kind or 'not at all'} on {named_ranks(on)}" for kind, on in ranks.items())
            differences.append(f"{name!r} ({'; '.join(texts)})")
    omitted = len(differences) - _MOST_NAMES
    more = f" and {omitted} more" if omitted > 0 else ""
    return (
        f"the ranks train different parameters: {', '.join(differences[:_MOST_NAMES])}{more}. "
        "Unfreeze the same parameters at the same step on all ranks, and add them to the same "
        "optimizer."
    )
