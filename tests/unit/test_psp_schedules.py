"""Invariants of PSP-SGD under random schedules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.psp.settings import PSPSettings
from tests.unit.psp_network import Cluster, Weather

STEPS = 5


def marks(world_size: int, blocks: int) -> list[Tensor]:
    """Parameters that count how often each gradient has been used, one element for each."""
    return [torch.zeros(world_size * STEPS, dtype=torch.float64) for _ in range(blocks)]


def mark(rank: int, step: int, parameters: list[Parameter]) -> list[Tensor]:
    gradient = torch.zeros_like(parameters[0])
    gradient[rank * STEPS + step] = -1.0
    return [gradient.clone() for _ in parameters]


def cluster(
    world_size: int,
    weather: Weather,
    *,
    c: str | int = "all",
    b: float = 1.0,
    tau: tuple[float, float] = (0.0, 0.0),
    every: int = 0,
    warmup_steps: int = 0,
    seed: int = 0,
) -> Cluster:
    return Cluster(
        world_size,
        marks(world_size, world_size),
        mark,
        steps=STEPS,
        weather=weather,
        settings=PSPSettings(
            min_pushes=c,
            min_pulled=b,
            push_timeout_s=tau[0],
            pull_timeout_s=tau[1],
            warmup_steps=warmup_steps,
        ),
        rendezvous_every=every,
        seed=seed,
    )


@st.composite
def weathers(draw: st.DrawFn, world_size: int) -> Weather:
    slow = st.sampled_from([0.01, 0.1, 0.1, 1.0, 5.0])
    return Weather(
        latency_s=draw(st.sampled_from([(0.001, 0.001), (0.0, 0.3), (0.001, 4.0)])),
        compute_s=[draw(slow) for _ in range(world_size)],
    )


RULES = st.tuples(st.sampled_from(["all", 1, 2, 3]), st.sampled_from([0.3, 0.5, 1.0]))
TAUS = st.tuples(st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.5]))


def check(run: Cluster) -> None:
    """Check the invariants of a complete run."""
    for model in run.models:
        values = [torch.cat(values) for values in model.values()]
        assert all(torch.equal(one, values[0]) for one in values), "the models of ranks differ"
    final: Sequence[Tensor] = [p.detach() for p in run.ranks[0].parameters]
    for value in final:
        assert value.isfinite().all()
        times = value.round()
        if not run.settings.warmup_steps:  # the warm-up uses means and not sums
            torch.testing.assert_close(value, times, rtol=0, atol=1e-9)
        assert times.min() >= 0 and times.max() <= 1, "a gradient must be used once or not at all"


@settings(max_examples=25, deadline=None)
@given(st.data(), RULES, TAUS, st.sampled_from([0, 2]), st.integers(0, 4), st.integers(0, 2**31))
def test_every_gradient_is_used_or_counted_as_dropped(
    data: st.DataObject,
    rules: tuple[str | int, float],
    tau: tuple[float, float],
    every: int,
    warmup: int,
    seed: int,
) -> None:
    rule = {"c": rules[0], "b": rules[1], "tau": tau, "every": every, "warmup_steps": warmup}
    run = cluster(3, data.draw(weathers(3)), **rule, seed=seed)
    run.run()
    check(run)
    final = torch.cat([p.detach() for p in run.ranks[0].parameters]).round()
    counts = [rank.server.counts for rank in run.ranks]
    used, dropped = sum(c.used for c in counts), sum(c.dropped for c in counts)
    assert warmup or final.sum() == used  # the warm-up uses means and not sums
    assert used + dropped == 3 * 3 * STEPS
