"""Sums over groups: exact sums, and quantised or sparse sums with error feedback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_hier.comm.blocks.error_feedback import ChunkFeedback, ErrorFeedback
from lightning_hier.comm.blocks.exchange import AcrossDtype, make_codec
from lightning_hier.comm.blocks.sums import exact_sum, quantised_sum, sparse_sum
from lightning_hier.comm.communicators import Communicators
from lightning_hier.comm.stages import Pipeline, Stages
from tests.distributed.gradients import open_world
from tests.ranks import run_ranks

CHUNK = 1024
HOSTS = {"one host": [0, 0, 0, 0], "two": [0, 0, 1, 1], "uneven": [0, 1, 1, 1]}
SHORT: tuple[AcrossDtype, ...] = ("bfloat16", "int8", "int4")
SPARSE: tuple[AcrossDtype, ...] = ("same", "int8", "int4")
NUMEL = 2 * CHUNK + 700


def _on_ranks(
    function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]
) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """Each case with the results of the function on all ranks, which start once."""
    by_rank = run_ranks(_each, 4, function, cases)
    by_case = zip(*by_rank, strict=True)
    return [(case, list(results)) for case, results in zip(cases, by_case, strict=True)]


def _each(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [function(*case) for case in cases]


def _own(number: int, numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    return torch.randn(numel, dtype=torch.float64, generator=generator)


def _sum(values: Tensor) -> Tensor:
    total = values.clone()
    dist.all_reduce(total)
    return total


def _places(numel: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, numel)) for start in range(0, numel, CHUNK)]


def _exact(hosts: str, numel: int) -> tuple[float, list[float], int]:
    communicators = open_world(1, host_of=HOSTS[hosts])
    values = _own(0, numel)
    expected = _sum(values)
    Pipeline(exact_sum(values[place], communicators.route) for place in _places(numel)).run()
    sent = communicators.traffic.of("across", "models").payload_bytes
    return float((values - expected).abs().max()), values.tolist(), sent


def test_exact_sums_are_the_same_on_all_ranks() -> None:
    """On two hosts of two ranks, the first rank of each sends 2 (2 - 1) / 2 = 1 model."""
    for (hosts, numel), results in _on_ranks(_exact, [(hosts, NUMEL) for hosts in HOSTS]):
        for error, values, _ in results:
            assert error < 1e-14, hosts
            assert values == results[0][1], hosts
        if hosts == "two":
            assert [sent for *_, sent in results] == [8 * numel, 0, 8 * numel, 0]


def _of_dtype(dtype: torch.dtype) -> float:
    route = open_world(1, host_of=HOSTS["uneven"]).route
    values = torch.arange(4).to(dtype) * (dist.get_rank() + 1)
    Pipeline([exact_sum(values, route)]).run()
    return float((values - 10 * torch.arange(4).to(dtype)).abs().max())


def test_exact_sums_of_every_dtype() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    for case, errors in _on_ranks(_of_dtype, [(dtype,) for dtype in dtypes]):
        assert errors == [0.0] * 4, case


def _short_rounds(
    hosts: str, across_dtype: AcrossDtype, numel: int, rounds: int, density: float = 1.0
) -> tuple[float, float, list[float]]:
    """Largest loss over all rounds, largest error of one round, and the last sum.

    The loss is the difference of the exact sums from the sent sums plus the error feedback.
    """
    communicators = open_world(1, host_of=HOSTS[hosts])
    route, codec = communicators.route, make_codec(across_dtype, torch.float64, density)
    assert codec is not None
    error_feedback = ErrorFeedback(
        numel,
        chunk=CHUNK,
        inter_host_ranks=route.inter_host_ranks if density == 1.0 else 1,
        sums=density == 1.0,
        like=torch.zeros(1).double(),
    )
    sent, expected = torch.zeros(numel).double(), torch.zeros(numel).double()
    worst, values = 0.0, torch.zeros(0)

    def work(values: Tensor, place: slice, *, keep: bool) -> Stages:
        error = error_feedback.of(place, keep=keep)
        total = quantised_sum if density == 1.0 else sparse_sum
        return total(values[place], route, codec, error if route.between else None)

    for number in range(rounds):
        values = _own(number, numel)
        expected += _sum(values)
        evaluated = values.clone()
        Pipeline(work(evaluated, place, keep=False) for place in _places(numel)).run()
        exact = _sum(values)
        Pipeline(work(values, place, keep=True) for place in _places(numel)).run()
        assert torch.equal(evaluated, values), "evaluation and end of the block are bit-equal"
        sent += values
        worst = max(worst, float((values - exact).abs().max()))
    total = sent + _total_feedback(error_feedback, communicators, numel)
    return float((total - expected).abs().max()), worst, values.tolist()


def _total_feedback(
    error_feedback: ErrorFeedback, communicators: Communicators, numel: int
) -> Tensor:
    """Sum of the error feedback of all ranks by element."""
    route, own = communicators.route, torch.zeros(numel, dtype=torch.float64)
    if route.between is not None:
        for place in _places(numel):
            feedback = error_feedback.of(place, keep=True)
            own[place] += feedback.own[: place.stop - place.start]
            first = place.start + route.between.position * feedback.sums.numel()
            part = own[first : min(first + feedback.sums.numel(), place.stop)]
            part += feedback.sums[: part.numel()]
    return _sum(own)


def test_quantised_sums_lose_nothing_over_many_rounds() -> None:
    """Sent sums and error feedback add up to the exact sums, up to a rounding of 1e-12."""
    cases = [(hosts, dtype, NUMEL, 6) for hosts, dtype in product(HOSTS, SHORT)]
    for case, results in _on_ranks(_short_rounds, cases):
        most = 3.0 if case[1] == "int4" else 0.5
        for loss, error, values in results:
            assert loss < 1e-11, case
            assert 1e-4 < error < most, f"{case}: the sum is rounded, with a small error"
            assert values == results[0][2], f"{case}: sums are bit-equal on all ranks"


def test_sparse_sums_lose_nothing_over_many_rounds() -> None:
    """Sent sums and error feedback add up to the exact sums. All ranks are bit-equal."""
    cases = [(hosts, dtype, NUMEL + 1, 6, 0.05) for hosts, dtype in product(HOSTS, SPARSE)]
    for case, results in _on_ranks(_short_rounds, cases):
        for loss, error, values in results:
            assert loss < 1e-11, case
            assert error > 1.0, f"{case}: the sum is sparse"
            assert values == results[0][2], case


def _sparse_of_dtype(dtype: torch.dtype) -> tuple[list[float], float]:
    """The sparse sum, and the largest loss of sum and error feedback."""
    communicators = open_world(1, host_of=HOSTS["one host"])
    route, codec = communicators.route, make_codec("int8", dtype, 0.25)
    assert codec is not None
    values = _own(0, 100).to(dtype)
    own, feedback = values.clone(), ChunkFeedback.zeros(values, 1)
    Pipeline([sparse_sum(values, route, codec, feedback if route.between else None)]).run()
    left = _sum(feedback.own[:100].double())
    return values.tolist(), float((values.double() + left - _sum(own.double())).abs().max())


def test_sparse_sums_of_short_numbers_are_computed_in_float32() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    for (dtype,), results in _on_ranks(_sparse_of_dtype, [(dtype,) for dtype in dtypes]):
        for values, loss in results:
            # The sum of four values is rounded once.
            assert loss <= 8 * torch.finfo(dtype).eps, dtype
            assert values == results[0][0], dtype
