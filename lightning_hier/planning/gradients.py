"""Gradients inside a group at every step: exact as in DDP or FSDP2, or compressed by GTC."""

from __future__ import annotations

import math

from lightning_hier.planning.collectives import Layout, Load, RankGroup
from lightning_hier.planning.inputs import Network, Workload
from lightning_hier.planning.prediction import Settings

# A backward pass computes about twice as much as a forward pass.
_BACKWARD = 2 / 3
# torch's defaults: a first bucket of 1 MiB, then buckets of 25 MiB.
_FIRST_BUCKET_BYTES, _BUCKET_BYTES = 1 << 20, 25 << 20
# DDP copies gradients into buckets and back.
_DDP_COPIES = 2.0
# Cost of encoding in copies of the gradient, plus the cost per sent element, from
# docs/reports/performance.md: 2.5 at 0.1%, 2.8 at 1% and 4.8 at 7%. Half of it precedes sending a
# bucket, half follows the last bucket. DDP's buckets and new gradients take 3.5 more (fitted in
# docs/reports/planner.md).
_ENCODE, _ENCODE_SENT, _GTC_COPIES = 2.5, 34.0, 3.5
# Adding a received element at a random position takes as long as copying eight consecutive ones.
_DECODE = 8.0
WORD_BYTES = 4
# From this density on, the payload is a bitmap of 2 bits for each element, whose cost is constant.
BITMAP_DENSITY = 1 / 16


def step_with_gradients(
    workload: Workload, network: Network, settings: Settings
) -> tuple[float, float]:
    """Seconds of a step of a group, and bytes of its gradients that a host sends to other hosts.

    The equations are in docs/planning.md.

    Raises:
        ValueError: the groups do not fit the hosts.

    """
    group = Layout(network, settings).group
    if group.size == 1:
        return workload.step_s, 0.0
    nbytes, density = workload.gradient_bytes, settings.density
    buckets = 1 + math.ceil(max(nbytes - _FIRST_BUCKET_BYTES, 0) / _BUCKET_BYTES)
    if settings.across == "divided":
        return _divided_step(workload, network, group, buckets)
    if density is None:
        load, copies, copies_after = group.all_reduce(nbytes), _DDP_COPIES, 0.0
    else:
        sent = min(density, BITMAP_DENSITY)
        load = group.all_gather(WORD_BYTES * sent * workload.parameters)
        load += Load(latency_s=load.latency_s)  # numbers of words, which are gathered before them
        copies = (_ENCODE + _ENCODE_SENT * sent + _GTC_COPIES) / 2
        copies_after = copies + min(group.size * density, 2.0) * _DECODE
    gradients = network.devices * nbytes
    # Each bucket is a separate collective.
    load += Load(latency_s=(buckets - 1) * load.latency_s, copied_bytes=gradients * copies)
    after_s = Load(copied_bytes=gradients * copies_after).seconds(network)
    # Buckets are sent one after the other beside the backward pass, the last one after it. If the
    # same cores compute the step, their part is not hidden.
    sending_s = load.seconds(network, pieces=buckets)
    last_s = min(_BUCKET_BYTES / nbytes, 1.0) * sending_s
    busy_s = load.processor_s(network) if workload.on_cores else 0.0
    exposed_s = max(sending_s - _BACKWARD * workload.step_s, last_s, busy_s)
    return workload.step_s + exposed_s + after_s, load.nic_bytes


def _divided_step(
    workload: Workload, network: Network, group: RankGroup, buckets: int
) -> tuple[float, float]:
    """FSDP2: weights are gathered for both passes, and gradients are reduced and scattered."""
    nbytes = workload.gradient_bytes
    # The second gather and the reduction together have the bytes of an all-reduce.
    load = group.all_gather(nbytes / group.size) + group.all_reduce(nbytes)
    sending_s = load.seconds(network, pieces=buckets)
    # A layer is exchanged while another one is computed. On the CPU, FSDP2 waits for it.
    together = sum if workload.on_cores else max
    return together((workload.step_s, sending_s)), load.nic_bytes
