"""Blocks between device and host: the same elements, in memory of their own."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.parameter_server.psp import staging

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_there_and_back(device: str) -> None:
    """Several dtypes, other layouts, a single tensor and an empty one."""
    tensors = [
        torch.randn(2, 3, 4, 4, device=device).to(memory_format=torch.channels_last),
        torch.randn(5, device=device, dtype=torch.float16),
        torch.randn(3, 4, device=device).t(),
        torch.empty(0, device=device),
    ]
    for some in (tensors, tensors[:1], tensors[1:2]):
        flat = staging.to_host(some, torch.float32)
        assert flat.device.type == "cpu" and flat.is_contiguous()
        expected = torch.cat([one.cpu().reshape(-1).float() for one in some])
        assert torch.equal(flat, expected)
        copies = [torch.zeros_like(one) for one in some]
        staging.write_(flat, copies)
        assert all(torch.equal(one, copy) for one, copy in zip(some, copies, strict=True))


def test_host_memory_is_not_that_of_the_tensors() -> None:
    tensor = torch.ones(4)
    flat = staging.to_host([tensor], torch.float32)
    tensor.zero_()
    assert torch.equal(flat, torch.ones(4))
