"""How the time of communication adds to that of steps."""

from __future__ import annotations

from lightning_hier.algorithms.arguments import check_positive, check_whole
from lightning_hier.algorithms.planning.workload import Workload


def amortised_step_s(
    step_s: float,
    *,
    block_size: int,
    synchronisation_s: float,
    travel_s: float = 0.0,
) -> float:
    """Mean seconds of a step, when every ``block_size``-th is followed by a synchronisation.

    Args:
        step_s: between two synchronisations.
        block_size: tau.
        synchronisation_s: in which nobody trains.
        travel_s: that something travels beside the next block: it is waited for if that is over
            before.

    """
    waited = max(travel_s - block_size * step_s, 0.0)
    return step_s + (synchronisation_s + waited) / block_size


def block_speedup(
    ranks: int, *, efficiency: float, synchronisation_steps: float, block_size: int
) -> float:
    """Speedup N e / (1 + s / tau): the same formula with costs in steps (EQUATIONS of the papers).

    Args:
        ranks: N.
        efficiency: e, what a rank keeps of its speed beside all others.
        synchronisation_steps: s, a synchronisation in such steps.
        block_size: tau.

    """
    check_whole("ranks", ranks)
    check_positive("efficiency", efficiency)
    step_s = amortised_step_s(
        1 / efficiency,
        block_size=block_size,
        synchronisation_s=synchronisation_steps / efficiency,
    )
    return ranks / step_s


def beside_backward_s(
    workload: Workload,
    communication_s: float,
    *,
    first: float,
    last: float,
    processor_s: float = 0.0,
) -> float:
    """Seconds of a step whose gradients travel while the backward pass goes on.

    Messages follow each other. The first leaves when its part of the backward pass is done, the
    last no earlier than the whole pass.

    Args:
        workload: the step.
        communication_s: of all messages, one after the other.
        first: share of the gradients in the first message.
        last: in the last one.
        processor_s: for which the cores work on them; a step on the same cores waits for that.

    """
    step_s = workload.disturbed_step_s
    if workload.on_cores:
        return step_s + max(communication_s - workload.backward_share * step_s, processor_s)
    backward_s = workload.backward_share * step_s
    after_all = backward_s + last * communication_s
    in_line = first * backward_s + communication_s
    return step_s - backward_s + max(after_all, in_line)
