"""GTC: what the ranks of a group send each other at every step (`comm/gradients/`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hier.algorithms.kernels.payload import bitmap_words
from lightning_hier.algorithms.planning.collectives import Team, all_gather
from lightning_hier.algorithms.planning.ddp import buckets, edges
from lightning_hier.algorithms.planning.load import Load
from lightning_hier.algorithms.planning.network import Network
from lightning_hier.algorithms.planning.placement import Placement
from lightning_hier.algorithms.planning.prediction import Prediction
from lightning_hier.algorithms.planning.steps import beside_backward_s
from lightning_hier.algorithms.planning.workload import Workload

# Copies of the gradient that encoding and the residual take, and more of them for each element
# that is sent (docs/reports/performance.md: 2.5 at 0.1%, 2.8 at 1%, 4.8 at 7%); half of that when
# a bucket begins and half when the step ends. Beside it DDP copies gradients into buckets and back,
# and gradients are made in fresh memory: so many copies, fitted to whole runs (reports/planner.md).
_ENCODE, _ENCODE_SENT, _BUCKETS = 2.5, 34.0, 3.5
# An element that has come is added somewhere in the chunk: about so many elements copied in a row.
_DECODE = 8.0
_WORD_BYTES, _FACT_BYTES = 4, 8


@dataclass(frozen=True, kw_only=True)
class GTCSettings:
    """How gradients are compressed.

    Attributes:
        density: share of the elements that a rank sends, in (0, 1].

    Raises:
        ValueError: a value outside its range.

    """

    density: float = 0.01

    def __post_init__(self) -> None:
        """Check the value."""
        if not 0 < self.density <= 1:
            raise ValueError(f"density must lie between 0 and 1, got {self.density!r}")


@dataclass(frozen=True, kw_only=True)
class GTCStep:
    """What a step of a group costs.

    Attributes:
        payload: of words or bitmaps.
        counts: of what ranks tell each other before it.
        begin: passes while gradients come.
        finish: passes after the last.

    """

    payload: Load
    counts: Load
    begin: Load
    finish: Load


def gtc_step(workload: Workload, team: Team, network: Network, settings: GTCSettings) -> GTCStep:
    """Predict what a group does at a step, as if the model were one tensor of that density."""
    elements = workload.parameters
    words = math.ceil(settings.density * elements)
    payload = all_gather(_WORD_BYTES * min(words, bitmap_words(elements)), team, network)
    number = buckets(workload)
    facts = _FACT_BYTES * (number + workload.tensors)
    counts = all_gather(facts, team, network)
    waited = (number - 1) * (payload.latency_s + counts.latency_s)
    gradient = network.devices * workload.gradient_bytes
    encoding = gradient * (_ENCODE + _ENCODE_SENT * min(settings.density, 1 / 16)) / 2
    come = min(team.size * settings.density, 2.0) * _DECODE
    return GTCStep(
        payload=payload + Load(latency_s=waited),
        counts=counts,
        begin=Load(copied_bytes=encoding + gradient * _BUCKETS / 2),
        finish=Load(copied_bytes=encoding + gradient * (come + _BUCKETS / 2)),
    )


def step_with_gtc_s(
    workload: Workload, team: Team, network: Network, settings: GTCSettings
) -> float:
    """Seconds of a step in which a team sends compressed gradients.

    Encoding and sending go on beside the backward pass; residuals move when all has come.
    """
    if team.size == 1:
        return workload.disturbed_step_s
    found = gtc_step(workload, team, network, settings)
    first, last = edges(workload)
    together = found.payload + found.counts + found.begin
    seconds = together.seconds(network, pieces=buckets(workload))
    busy_s = together.processor_s(network)
    beside = beside_backward_s(workload, seconds, first=first, last=last, processor_s=busy_s)
    return beside + found.finish.seconds(network)


def gtc_memory_bytes(workload: Workload, team: Team, settings: GTCSettings) -> float:
    """Of the residual, the buckets and the payload of all, besides model and gradients."""
    if team.size == 1:
        return 0.0
    sent = min(_WORD_BYTES * settings.density, 1 / 4) * workload.parameters
    return 2 * workload.gradient_bytes + team.size * sent


def predict_gtc(
    workload: Workload, network: Network, settings: GTCSettings | None = None
) -> Prediction:
    """GTC over all ranks.

    Args:
        workload: what is trained.
        network: where.
        settings: how gradients are compressed; None: the strategy's defaults.

    """
    settings = settings or GTCSettings()
    world = Placement(network=network, group_size=network.ranks).world
    found = gtc_step(workload, world, network, settings)
    own = 2 * workload.gradient_bytes + workload.state_bytes
    return Prediction(
        strategy="gtc",
        settings={"density": settings.density},
        ranks=network.ranks,
        alone_s=workload.step_s,
        step_s=step_with_gtc_s(workload, world, network, settings),
        host_bytes=found.payload.card_bytes + found.counts.card_bytes,
        memory_bytes=own + gtc_memory_bytes(workload, world, settings),
    )
