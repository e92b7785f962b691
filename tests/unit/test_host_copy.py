"""Host copies of parameters and gradients have the same elements in separate memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hier.parameter_server.host_copy import HostCopy

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _parameters(device: str) -> list[Parameter]:
    """Parameters of several dtypes and layouts, and one without elements."""
    return [
        Parameter(value)
        for value in (
            torch.randn(2, 3, 4, 4, device=device).to(memory_format=torch.channels_last),
            torch.randn(5, device=device, dtype=torch.bfloat16),
            torch.randn(3, 4, device=device).t(),
            torch.empty(0, device=device),
        )
    ]


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.detach().cpu().reshape(-1).float() for one in tensors])


@pytest.mark.parametrize("device", DEVICES)
def test_values_are_copied_to_the_host_and_back(device: str) -> None:
    own = _parameters(device)
    for some in (own, own[:1], own[1:2]):
        host = HostCopy(some, torch.float32)
        flat = host.read_values()
        assert flat.device.type == "cpu" and flat.is_pinned() == (device == "cuda")
        assert torch.equal(flat, _flat(some))
        for staging in (None, host.empty()):
            copies = [Parameter(torch.zeros_like(one)) for one in some]
            places = [copy.data_ptr() for copy in copies]
            HostCopy(copies, torch.float32).write_values(flat, staging)
            assert torch.equal(_flat(copies), flat)
            assert [copy.data_ptr() for copy in copies] == places
