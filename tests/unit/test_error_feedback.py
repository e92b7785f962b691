"""Errors of values are kept if chunks are divided anew."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_hier.comm.blocks.error_feedback import ErrorFeedback

_NUMEL = 700


def _places(chunk: int) -> Iterator[slice]:
    for start in range(0, _NUMEL, chunk):
        yield slice(start, min(start + chunk, _NUMEL))


def _with_errors(chunk: int, wanted: Tensor) -> ErrorFeedback:
    feedback = ErrorFeedback(_NUMEL, chunk=chunk, inter_host_ranks=3, like=torch.empty(0))
    for place in _places(chunk):
        feedback.of(place, keep=True).own[: place.stop - place.start] = wanted[place]
    return feedback


def _values(feedback: ErrorFeedback, chunk: int) -> Tensor:
    found = (feedback.of(p, keep=False).own[: p.stop - p.start] for p in _places(chunk))
    return torch.cat([*found])


def test_if_the_number_of_groups_changes() -> None:
    wanted = torch.randn(_NUMEL)
    feedback = _with_errors(256, wanted)
    for ranks in (2, 5, 1, 3):
        feedback.fit(ranks)
        assert torch.equal(_values(feedback, 256), wanted)


def test_if_a_run_resumes_on_another_kind_of_device_whose_chunks_are_longer() -> None:
    wanted = torch.randn(_NUMEL)
    saved = _with_errors(256, wanted).state()
    longer = ErrorFeedback(_NUMEL, chunk=512, inter_host_ranks=3, like=torch.empty(0))
    longer.load(saved)
    assert torch.equal(_values(longer, 512), wanted)
    assert not longer.state()["sums"].any()
