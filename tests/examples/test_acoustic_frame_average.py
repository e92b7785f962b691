"""The frame average over batches and ranks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from examples.acoustic.models.frame_average import FrameAverage
from tests.ranks import run_ranks


def average_on_this_rank() -> float:
    dist.init_process_group("gloo")
    metric = FrameAverage()
    for total, frames in [[(3.0, 1), (1.0, 5)], [(8.0, 10)]][dist.get_rank()]:
        metric.update(torch.tensor(total), torch.tensor(frames))
    average = float(metric.compute())
    dist.destroy_process_group()
    return average


def test_average_counts_frames_over_ranks() -> None:
    assert run_ranks(average_on_this_rank, 2) == pytest.approx([12.0 / 16.0] * 2)


def test_average_of_no_frames_is_not_a_perfect_score() -> None:
    metric = FrameAverage()
    metric.update(torch.tensor(0.0), torch.tensor(0))
    assert math.isnan(float(metric.compute()))
