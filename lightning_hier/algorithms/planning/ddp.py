"""DDP: gradients of all ranks are averaged at every step, bucket by bucket beside backward."""

from __future__ import annotations

import math

from lightning_hier.algorithms.arguments import check_positive
from lightning_hier.algorithms.planning.collectives import Team, all_reduce
from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.steps import beside_backward_s
from lightning_hier.algorithms.planning.workload import Workload

# torch's defaults: a first bucket that leaves early, then buckets of 25 MiB.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
# The gradient is copied into the bucket and back.
_COPIES = 2.0


def buckets(workload: Workload) -> int:
    """Into how many DDP puts the gradients."""
    rest = max(workload.gradient_bytes - FIRST_BUCKET_BYTES, 0)
    return 1 + math.ceil(rest / BUCKET_BYTES)


def edges(workload: Workload) -> tuple[float, float]:
    """Shares of the gradients in the first and in the last bucket."""
    total = workload.gradient_bytes
    return min(FIRST_BUCKET_BYTES / total, 1.0), min(BUCKET_BYTES / total, 1.0)


def gradient_load(
    workload: Workload, team: Team, network: Network, *, shortened: float = 1.0
) -> Load:
    """Of averaging all gradients of a team exactly, bucket by bucket.

    Args:
        workload: whose gradients.
        team: who averages them.
        network: that joins the ranks.
        shortened: bytes sent for each byte of gradient, as by a hook that sends float16.

    """
    if team.size == 1:
        return Load()
    found = all_reduce(shortened * workload.gradient_bytes, team, network)
    waited = found.latency_s * (buckets(workload) - 1)
    copied = network.devices * _COPIES * workload.gradient_bytes
    return found + Load(latency_s=waited, copied_bytes=copied)


def step_with_all_reduce_s(
    workload: Workload, team: Team, network: Network, *, shortened: float = 1.0
) -> float:
    """Seconds of a step in which a team averages its gradients exactly."""
    load = gradient_load(workload, team, network, shortened=shortened)
    if team.size == 1:
        return workload.disturbed_step_s
    first, last = edges(workload)
    seconds = load.seconds(network, pieces=buckets(workload))
    busy_s = load.processor_s(network)
    return beside_backward_s(workload, seconds, first=first, last=last, processor_s=busy_s)


def predict_ddp(workload: Workload, network: Network, *, shortened: float = 1.0) -> Prediction:
    """DDP over all ranks.

    Args:
        workload: what is trained.
        network: where.
        shortened: bytes sent for each byte of gradient; 0.5 for a float16 hook on float32.

    Raises:
        ValueError: ``shortened`` is not positive.

    """
    check_positive("shortened", shortened)
    world = Placement(network=network, group_size=network.ranks).world
    load = gradient_load(workload, world, network, shortened=shortened)
    held = 3 * workload.gradient_bytes  # model, gradients, buckets
    return Prediction(
        strategy="ddp" if shortened == 1 else f"ddp, {shortened:g} of the bytes",
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_with_all_reduce_s(workload, world, network, shortened=shortened),
        host_bytes=load.card_bytes,
        memory_bytes=held + workload.state_bytes,
    )
