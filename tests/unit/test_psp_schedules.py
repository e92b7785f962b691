"""Invariants of PSP-SGD under random schedules, and gradients that the servers keep out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, optim
from torch.nn import Parameter

from lightning_hier.parameter_server.settings import PSPSettings
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
    blocks: int = 3,
) -> Cluster:
    return Cluster(
        world_size,
        marks(world_size, blocks),
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
@given(
    st.data(),
    RULES,
    TAUS,
    st.sampled_from([0, 2]),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(0, 2**31),
)
def test_every_gradient_is_used_or_counted_as_dropped(
    data: st.DataObject,
    rules: tuple[str | int, float],
    tau: tuple[float, float],
    every: int,
    warmup: int,
    blocks: int,
    seed: int,
) -> None:
    """With fewer parameters than ranks, some shards are empty."""
    rule = {"c": rules[0], "b": rules[1], "tau": tau, "every": every, "warmup_steps": warmup}
    run = cluster(3, data.draw(weathers(3)), **rule, seed=seed, blocks=blocks)
    run.run()
    check(run)
    final = torch.cat([p.detach() for p in run.ranks[0].parameters]).round()
    counts = [rank.counts for rank in run.ranks]
    used, dropped = sum(c.used for c in counts), sum(c.dropped for c in counts)
    assert warmup or final.sum() == used  # the warm-up uses means and not sums
    assert used + dropped == blocks * 3 * STEPS


def _constant(*by_step: float) -> Any:
    """Gradients that are the same on all ranks, for each step."""
    return lambda rank, step, own: [torch.full_like(one, by_step[step]) for one in own]


def _values(run: Cluster) -> list[float]:
    run.run()
    return torch.cat([own.detach() for own in run.ranks[0].parameters]).tolist()


def test_update_that_overflows_is_undone_with_its_state() -> None:
    make = partial(optim.SGD, lr=10.0, momentum=0.9)
    run = Cluster(1, [torch.zeros(3)], _constant(-1.0, -3e38, -1.0), steps=3, make=make)
    assert _values(run) == [20.0] * 3
    assert run.ranks[0].counts.nonfinite == 1


def test_half_precision_is_summed_in_float32() -> None:
    settings, start = PSPSettings(linear_scaling=False), [torch.zeros(3, dtype=torch.float16)]
    assert _values(Cluster(4, start, _constant(-4e4), steps=1, settings=settings)) == [4e4] * 3


def test_parameter_without_gradient_on_any_worker_does_not_change() -> None:
    """Each shard has a parameter with a gradient on one worker, and one without any."""

    def some(rank: int, step: int, own: list[Parameter]) -> list[Tensor | None]:
        if step == 0:
            return [torch.full_like(one, -1.0) for one in own]
        return [torch.zeros(1) if rank and kept == 1.0 else None for kept in decay]

    make, decay = partial(optim.SGD, lr=1.0, weight_decay=0.25), [1.0, 1.0, 2.0, 2.0]
    run = Cluster(2, [torch.zeros(1) for _ in decay], some, steps=2, make=make)
    places = {p: at for at, p in enumerate(run.ranks[0].parameters)}
    shards = [[places[p] for p in shard.parameters] for shard in run.ranks[0].plan.values()]
    assert shards == [[0, 2], [1, 3]]
    assert _values(run) == decay
