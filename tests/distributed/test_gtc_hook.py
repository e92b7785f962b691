"""Threshold compression under DDP: conservation of gradients, exact steps, bytes and loss scale."""

from __future__ import annotations

import time
import warnings

import torch
import torch.distributed as dist
from torch import Tensor

import lightning_hier as lh
from tests.distributed.gradients import Branches, inputs, start, tower
from tests.ranks import run_ranks
from tests.signs import select_words

SMALL_BUCKETS_MB = 0.0002  # a bucket for each weight


def _conserve() -> tuple[float, list[list[list[str]]], float]:
    run = start(lh.GTC(density=0.1, dense_below=0), tower(8), bucket_cap_mb=SMALL_BUCKETS_MB)
    for step in range(12):
        time.sleep(0.001 * ((dist.get_rank() + step) % 4))  # the slowest rank changes
        run.step(inputs(step))
    left = sum(float(run.residual(name).abs().sum()) for name in run.had)
    return max(run.loss_of_gradient().values()), run.buckets, left


def test_conservation_over_buckets_and_their_rebuild_with_automatic_threshold() -> None:
    """Ranks of changing pace do not deadlock."""
    for error, buckets, left in run_ranks(_conserve, 4):
        assert error < 1e-12
        assert left > 0.0  # otherwise, nothing was compressed
        first, second, *others = [[name for bucket in step for name in bucket] for step in buckets]
        assert first != second, "DDP did not form new buckets after the first step"
        assert sorted(first) == sorted(second)
        assert all(other == second for other in others)
        assert len(buckets[1]) == 8


def _small_and_first() -> None:
    run = start(lh.GTC(density=0.05, dense_below=7), tower())
    size = run.communicators.group.size
    for step in range(3):
        batch = inputs(step)
        own = run.own_gradients(batch)
        run.step(batch)
        for name, parameter in run.model.module.named_parameters():
            mean = own[name] / size
            dist.all_reduce(mean)
            exact = step == 0 or parameter.numel() < 7
            assert torch.allclose(parameter.grad, mean, rtol=1e-12) == exact, (name, step)
            assert (parameter in run.worker.memory.tensors) == (parameter.numel() >= 7)


def test_small_tensors_and_the_first_step_are_the_exact_mean() -> None:
    run_ranks(_small_and_first, 2)


def _one_tensor(threshold: float) -> tuple[int, int, int]:
    """Bytes and words of one step of a tensor of 400 elements, and bytes across groups."""
    torch.manual_seed(3)
    run = start(lh.GTC(threshold=threshold, dense_below=0), torch.nn.Linear(20, 20, bias=False))
    batch = inputs(0, width=20).float()
    own = run.own_gradients(batch)["weight"].view(-1)
    run.step(batch, counted=False)
    words = torch.tensor([select_words(own, threshold).numel()])
    dist.all_reduce(words, op=dist.ReduceOp.MAX)
    traffic = run.communicators.traffic
    assert run.buckets == [[["weight"]]]
    assert traffic.of("group", "gradient_counts").payload_bytes == (4 - 1) * 2 * 8
    return (
        traffic.of("group", "gradients").payload_bytes,
        int(words),
        traffic.total("across").payload_bytes,
    )


def _one_tensor_each() -> list[tuple[int, int, int]]:
    return [_one_tensor(threshold) for threshold in (8.0, 1e-3, 1e9)]


def test_bytes_are_those_of_the_cheapest_coding_and_the_hook_ran_on_cpu() -> None:
    for (sent, few, across), (as_bitmap, many, _), nothing in run_ranks(_one_tensor_each, 4):
        assert 0 < few < 25
        assert sent == (4 - 1) * 4 * few
        assert many > 300
        assert as_bitmap == (4 - 1) * 4 * 25  # 16 elements a word
        assert nothing == (0, 0, across) == (0, 0, 0)


def _unused_branches() -> float:
    torch.manual_seed(5)
    module = Branches().double()
    run = start(lh.GTC(density=0.1, dense_below=0), module, find_unused=True)
    rank = dist.get_rank()
    for step in range(9):
        # In every step, all ranks use one branch, one rank uses another, and none uses the third.
        module.used = {step % 3} | ({(step + 1) % 3} if rank == 1 else set())
        unused = (step + 2) % 3
        before = [run.residual(f"branches.{unused}.{n}").clone() for n in ("weight", "bias")]
        run.step(inputs(step))
        after = [run.residual(f"branches.{unused}.{n}") for n in ("weight", "bias")]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert module.branches[unused].weight.grad is None
    return max(run.loss_of_gradient().values())


def test_parameters_that_some_or_all_ranks_leave_unused_lose_nothing() -> None:
    assert max(run_ranks(_unused_branches, 2)) < 1e-12


def _too_small_threshold() -> list[str]:
    run = start(lh.GTC(threshold=1e-4, dense_below=0), tower())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            run.step(inputs(step))
    return [str(warning.message) for warning in caught if "GTC" in str(warning.message)]


def test_threshold_under_which_residuals_grow_for_ever_is_warned_of_once() -> None:
    for messages in run_ranks(_too_small_threshold, 2):
        assert len(messages) == 1
        assert "threshold=0.0001" in messages[0]
        assert "Raise the threshold, or use threshold='auto'" in messages[0]


def _run(scales: list[float]) -> tuple[list[Tensor], list[Tensor], list[float | None]]:
    """Unscaled gradients of the last step, residuals and thresholds."""
    scale = 1.0
    run = start(lh.GTC(density=0.1, dense_below=7), tower().float(), grad_scale=lambda: scale)
    for step, scale in enumerate(scales):  # noqa: B007 - the hook reads it
        run.step(inputs(step).float(), factor=scale, counted=False)
    gradients = [p.grad / scale for p in run.model.module.parameters()]
    memory = list(run.worker.memory.tensors.values())
    return gradients, [m.residual for m in memory], [m.threshold for m in memory]


def _runs() -> list[tuple[list[Tensor], list[Tensor], list[float | None]]]:
    return [_run([1.0] * 10), _run([65536.0] * 3 + [131072.0] * 3 + [1024.0] * 4)]


def test_residuals_and_thresholds_are_independent_of_the_scale() -> None:
    """The scales are powers of two, so that the numbers must be bit-equal."""
    for plain, other in run_ranks(_runs, 2):
        assert all(torch.equal(a, b) for a, b in zip(plain[0], other[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(plain[1], other[1], strict=True))
        assert plain[2] == other[2]
        assert any(residual.abs().sum() > 0 for residual in plain[1])
