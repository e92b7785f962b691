"""PSP-SGD: every rank serves a block of the parameters, and waits for as many as it must."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hier.algorithms.arguments import check_not_negative, check_share
from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.workload import Workload

# A server adds the gradients of all workers to its block: one model in all. A worker copies its
# gradient out and the new parameters in.
_COPIES = 3.0
_CURVE_COPIES = 4.0
# docs/reports/stragglers.md, "Memory of a rank": models beyond what synchronous SGD holds.
_HELD_ALL, _HELD_PARTIAL = 2.7, 4.3


@dataclass(frozen=True, kw_only=True)
class PSPSettings:
    """How many are waited for, and how often somebody is late.

    Attributes:
        min_pushes: c / N, share of the workers whose gradients a server needs.
        min_pulled: b, share of the blocks that a worker needs.
        push_timeout_s: tau_1, for which a server waits longer.
        pull_timeout_s: tau_2, for which a worker waits longer.
        late_share: share of the servers' replies that come late.
        late_s: by how much.

    Raises:
        ValueError: a value outside its range.

    """

    min_pushes: float = 1.0
    min_pulled: float = 1.0
    push_timeout_s: float = 0.0
    pull_timeout_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        check_share("min_pushes", self.min_pushes)
        check_share("min_pulled", self.min_pulled)
        check_share("late_share", self.late_share, zero=True)
        for name in ("push_timeout_s", "pull_timeout_s", "late_s"):
            check_not_negative(name, getattr(self, name))


def needed(share: float, ranks: int) -> int:
    """Workers, or blocks, that a share of all stands for; rounded up."""
    return max(math.ceil(share * ranks - 1e-9), 1)


def late_wait_s(ranks: int, settings: PSPSettings) -> float:
    """Mean seconds of a step for which the ranks wait for late replies.

    A worker is held up where more of its replies are late than it can do without, and the servers
    where more workers are than they can. What may be done without is still waited for as long as
    its time-out says.
    """
    blocks_spared = ranks - needed(settings.min_pulled, ranks)
    workers_spared = ranks - needed(settings.min_pushes, ranks)
    some_late = _more_than(0, ranks, settings.late_share)
    held_up = _more_than(blocks_spared, ranks, settings.late_share)
    pulled_s = min(settings.pull_timeout_s, settings.late_s)
    pushed_s = min(settings.push_timeout_s, settings.late_s)
    full = _more_than(workers_spared, ranks, held_up)
    any_push = _more_than(0, ranks, held_up)
    any_pull = _more_than(0, ranks, some_late)
    waits = full * settings.late_s + (any_push - full) * pushed_s
    # A worker that does without a block has waited for its time-out first, and all wait for it.
    return waits + max(any_pull - any_push, 0.0) * pulled_s


def predict_psp(
    workload: Workload, network: Network, settings: PSPSettings | None = None
) -> Prediction:
    """`psp`: pushes and pulls of all ranks, and their waits for those that are late.

    The gradient is pushed when it is whole, so nothing hides behind the backward pass.
    """
    settings = settings or PSPSettings()
    sent = _exchange(workload, network)
    taken = needed(settings.min_pushes, network.ranks) / network.ranks
    step_s = workload.disturbed_step_s + sent.seconds(network, pieces=network.ranks)
    held = _HELD_ALL if settings.min_pushes == settings.min_pulled == 1 else _HELD_PARTIAL
    return Prediction(
        strategy="psp",
        settings={"min_pushes": settings.min_pushes, "min_pulled": settings.min_pulled},
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_s + late_wait_s(network.ranks, settings),
        host_bytes=sent.card_bytes,
        memory_bytes=(3 + held) * workload.gradient_bytes + workload.state_bytes / network.ranks,
        useful=taken if settings.push_timeout_s == 0 else 1.0,
    )


def _exchange(workload: Workload, network: Network) -> Load:
    """A gradient to all servers, and a block from each to all workers."""
    ranks, devices, model = network.ranks, network.devices, workload.gradient_bytes
    away, home = (ranks - devices) / ranks, (devices - 1) / ranks
    messages = 2.0 if ranks > 1 else 0.0
    latency_s = (network.between if network.hosts > 1 else network.within).latency_s
    return Load(
        latency_s=messages * latency_s,
        card_bytes=2 * devices * away * model,
        home_bytes=2 * home * model,
        copied_bytes=devices * model * (_COPIES + 2 * _CURVE_COPIES * away / 2),
        socket_bytes=2 * devices * 2 * (away + home) * model,
    )


def _more_than(spared: int, number: int, share: float) -> float:
    """Probability that more than ``spared`` of ``number`` happen, each with chance ``share``."""
    if share <= 0:
        return 0.0
    if share >= 1:
        return 1.0
    log_rest = math.log1p(-share)
    at_most = sum(
        math.exp(
            math.lgamma(number + 1) - math.lgamma(k + 1) - math.lgamma(number - k + 1)
            + k * math.log(share) + (number - k) * log_rest
        )
        for k in range(spared + 1)
    )  # fmt: skip
    return min(max(1.0 - at_most, 0.0), 1.0)
