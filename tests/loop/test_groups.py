"""Tests the groups of a plain loop."""

from __future__ import annotations

import torch
import torch.distributed as dist

import lightning_hier as lh
from tests.ranks import run_ranks


def _device() -> str:
    dist.init_process_group()
    return lh.Groups(1).device.type


def test_device_is_that_of_the_backend_that_torch_chooses() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert run_ranks(_device, 1) == [expected]
