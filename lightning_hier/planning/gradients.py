"""Gradients inside a group at every step: exact as in DDP or FSDP2, or compressed by GTC."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from lightning_hier.planning.collectives import Load, RankGroup, all_gather, all_reduce
from lightning_hier.planning.network import Network
from lightning_hier.planning.workload import Workload

# torch's defaults: a first bucket of 1 MiB, then buckets of 25 MiB.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
# DDP copies gradients into buckets and back.
_DDP_COPIES = 2.0
# Cost of encoding in copies of the gradient, plus the cost per sent element, from
# docs/reports/performance.md: 2.5 at 0.1%, 2.8 at 1% and 4.8 at 7%. Half of it precedes sending a
# bucket, half follows the last bucket. DDP's buckets and new gradients take 3.5 more (fitted in
# docs/reports/planner.md).
_ENCODE, _ENCODE_SENT, _GTC_COPIES = 2.5, 34.0, 3.5
# Adding a received element at a random position takes as long as copying eight consecutive ones.
_DECODE = 8.0
_WORD_BYTES = 4
# A bitmap has 2 bits for each element.
_ELEMENTS_PER_WORD = 16


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """Loads of one step: of buckets during the backward pass, and after the last bucket."""

    overlapped: Load = field(default_factory=Load)
    after: Load = field(default_factory=Load)


def buckets(workload: Workload) -> int:
    """Number of DDP's buckets."""
    rest = max(workload.gradient_bytes - FIRST_BUCKET_BYTES, 0)
    return 1 + math.ceil(rest / BUCKET_BYTES)


def exchange(
    workload: Workload, group: RankGroup, network: Network, density: float | None
) -> GradientExchange:
    """Loads of a step of a group. With ``density`` None, gradients are averaged exactly."""
    if group.size == 1:
        return GradientExchange()
    gradients = network.devices * workload.gradient_bytes
    if density is None:
        reduced = all_reduce(workload.gradient_bytes, group, network)
        # Each bucket is a separate collective.
        later = Load(latency_s=(buckets(workload) - 1) * reduced.latency_s)
        copies = Load(copied_bytes=gradients * _DDP_COPIES)
        return GradientExchange(overlapped=reduced + later + copies)
    sent = gtc_payload(workload, group, network, density)
    later = Load(latency_s=(buckets(workload) - 1) * sent.latency_s)
    # From a density of 1/16 on, the payload is a bitmap, whose cost is constant.
    passes = _ENCODE + _ENCODE_SENT * min(density, 1 / 16) + _GTC_COPIES
    decoded = min(group.size * density, 2.0) * _DECODE
    return GradientExchange(
        overlapped=sent + later + Load(copied_bytes=gradients * passes / 2),
        after=Load(copied_bytes=gradients * (passes / 2 + decoded)),
    )


def divided_exchange(workload: Workload, group: RankGroup, network: Network) -> Load:
    """FSDP2: weights are gathered for both passes, and gradients are reduced and scattered.

    The last two together have the bytes of an all-reduce.
    """
    gathered = all_gather(workload.gradient_bytes / group.size, group, network)
    return gathered + all_reduce(workload.gradient_bytes, group, network)


def divided_step_s(workload: Workload, network: Network, exchanged: Load) -> float:
    """max(step, C): FSDP2 gathers and reduces one layer while another one is computed.

    On the CPU it waits for each collective: step + C.
    """
    sending_s = exchanged.seconds(network, pieces=buckets(workload))
    if workload.on_cores:
        return workload.step_s + sending_s
    return max(workload.step_s, sending_s)


def gtc_payload(workload: Workload, group: RankGroup, network: Network, density: float) -> Load:
    """Words or a bitmap, whichever is smaller, computed for the model as one tensor."""
    elements = workload.parameters
    words = math.ceil(min(density * elements, elements / _ELEMENTS_PER_WORD))
    return all_gather(_WORD_BYTES * words, group, network)


def step_with_gradients_s(
    workload: Workload, network: Network, gradients: GradientExchange
) -> float:
    """Forward + max(backward + C_last, first backward + C) + time after the last bucket.

    C is the time of all buckets, which are sent one after the other: the first one after its part
    of the backward pass, the last one after the whole pass. If the same cores compute the step,
    their part of C is not hidden (docs/planning.md, "The equations").
    """
    step_s, total = workload.step_s, workload.gradient_bytes
    sending_s = gradients.overlapped.seconds(network, pieces=buckets(workload))
    after_s = gradients.after.seconds(network)
    backward_s = workload.backward_share * step_s
    if workload.on_cores:
        busy_s = gradients.overlapped.processor_s(network)
        return step_s + max(sending_s - backward_s, busy_s) + after_s
    last_s = backward_s + min(BUCKET_BYTES / total, 1.0) * sending_s
    first_s = min(FIRST_BUCKET_BYTES / total, 1.0) * backward_s + sending_s
    return step_s - backward_s + max(last_s, first_s) + after_s


def gradient_memory_bytes(workload: Workload, group: RankGroup, density: float | None) -> float:
    """DDP's buckets; with GTC also the residual and the payload of all ranks."""
    if group.size == 1:
        return 0.0
    if density is None:
        return workload.gradient_bytes
    received = min(_WORD_BYTES * density, 1 / 4) * group.size * workload.parameters
    return 2 * workload.gradient_bytes + received
