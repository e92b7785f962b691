"""Sums over the groups: exact, and quantised or sparse with error feedback."""

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
    """Every case with what the function returns for it on each rank. Ranks start once."""
    found = run_ranks(_each, 4, function, cases)
    return [(case, list(own)) for case, own in zip(cases, zip(*found, strict=True), strict=True)]


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
    """Two hosts of two ranks: the first rank of each sends half of 2 (2 - 1) / 2 models."""
    for (hosts, numel), found in _on_ranks(_exact, [(hosts, NUMEL) for hosts in HOSTS]):
        for error, values, _ in found:
            assert error < 1e-14, hosts
            assert values == found[0][1], hosts
        if hosts == "two":
            assert [sent for *_, sent in found] == [8 * numel, 0, 8 * numel, 0]


def _of_dtype(dtype: torch.dtype) -> float:
    route = open_world(1, host_of=HOSTS["uneven"]).route
    values = torch.arange(4).to(dtype) * (dist.get_rank() + 1)
    Pipeline([exact_sum(values, route)]).run()
    return float((values - 10 * torch.arange(4).to(dtype)).abs().max())


def test_every_dtype_of_a_model_goes_host_by_host() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    for case, found in _on_ranks(_of_dtype, [(dtype,) for dtype in dtypes]):
        assert found == [0.0] * 4, case


def _short_rounds(
    hosts: str, across_dtype: AcrossDtype, numel: int, rounds: int, density: float = 1.0
) -> tuple[float, float, list[float]]:
    """Largest loss, largest error of one round, and the last sum."""
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
    said, meant = torch.zeros(numel).double(), torch.zeros(numel).double()
    worst, values = 0.0, torch.zeros(0)

    def work(values: Tensor, place: slice, *, keep: bool) -> Stages:
        error = error_feedback.of(place, keep=keep)
        total = quantised_sum if density == 1.0 else sparse_sum
        return total(values[place], route, codec, error if route.between else None)

    for number in range(rounds):
        values = _own(number, numel)
        meant += _sum(values)
        looked = values.clone()
        Pipeline(work(looked, place, keep=False) for place in _places(numel)).run()
        exact = _sum(values)
        Pipeline(work(values, place, keep=True) for place in _places(numel)).run()
        assert torch.equal(looked, values), "evaluation gives the same bits as the end of the block"
        said += values
        worst = max(worst, float((values - exact).abs().max()))
    left = _left_over(error_feedback, communicators, numel)
    return float((said + left - meant).abs().max()), worst, values.tolist()


def _left_over(error_feedback: ErrorFeedback, communicators: Communicators, numel: int) -> Tensor:
    """What all ranks have left over together, by element."""
    route, left = communicators.route, torch.zeros(numel, dtype=torch.float64)
    if route.between is not None:
        for place in _places(numel):
            own = error_feedback.of(place, keep=True)
            left[place] += own.own[: place.stop - place.start]
            first = place.start + route.between.position * own.sums.numel()
            mine = left[first : min(first + own.sums.numel(), place.stop)]
            mine += own.sums[: mine.numel()]
    return _sum(left)


def test_short_forms_lose_nothing_over_many_rounds() -> None:
    """What was said, and what is left over, is what was meant; rounding alone is 1e-12 of it."""
    cases = [(hosts, dtype, NUMEL, 12) for hosts, dtype in product(HOSTS, SHORT)]
    for case, found in _on_ranks(_short_rounds, cases):
        most = 3.0 if case[1] == "int4" else 0.5
        for loss, error, values in found:
            assert loss < 1e-11, case
            assert 1e-4 < error < most, f"{case}: short, but not by much"
            assert values == found[0][2], f"{case}: all ranks have the same bits"


def test_sparse_sums_lose_nothing_over_many_rounds() -> None:
    """What was sent, and what is left, is what was meant; all ranks have the same bits."""
    cases = [(hosts, dtype, NUMEL + 1, 12, 0.05) for hosts, dtype in product(HOSTS, SPARSE)]
    for case, found in _on_ranks(_short_rounds, cases):
        for loss, error, values in found:
            assert loss < 1e-11, case
            assert error > 1.0, f"{case}: sparse"
            assert values == found[0][2], case


def _sparse_of_dtype(dtype: torch.dtype) -> tuple[list[float], float]:
    """The sum, and the largest error of what was sent and what is left, of 16-bit values."""
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
    for (dtype,), found in _on_ranks(_sparse_of_dtype, [(dtype,) for dtype in dtypes]):
        for values, loss in found:
            # Of a sum of four, which is rounded once.
            assert loss <= 8 * torch.finfo(dtype).eps, dtype
            assert values == found[0][0], dtype
