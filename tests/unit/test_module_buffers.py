"""Buffers that a module replaces must fit the tensors that blocks average."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hier.comm.blocks.health import HealthReport, Nonfinite, SyncPoint
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers


class _Codebook(nn.Module):
    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.arange(4.0).view(2, 2))


def _module() -> Any:
    return nn.Sequential(nn.BatchNorm1d(2), _Codebook())


def _reports(*flags: Nonfinite) -> list[HealthReport]:
    return [HealthReport(SyncPoint.BLOCK, 0, 1, 0, int(flag), -1) for flag in flags]


@pytest.mark.parametrize(
    "value", [torch.zeros(3, 2), torch.zeros(2, 2, dtype=torch.float64), None], ids=str
)
def test_buffer_that_does_not_fit_is_an_error_on_every_rank(value: Tensor | None) -> None:
    module = _module()
    buffers, others = ModuleBuffers(module), ModuleBuffers(_module())
    module[1].center = value
    buffers.reclaim()
    reports = _reports(others.finding, buffers.finding)
    with pytest.raises(ValueError, match=r"rank 1 removed buffers .* \('1.center'\)"):
        buffers.require_fit(reports)
    with pytest.raises(ValueError, match="rank 1 removed buffers .*its own error names them"):
        others.require_fit(reports)


def test_one_buffer_under_two_names_must_stay_one() -> None:
    module = _module()
    module.register_buffer("same", module[1].center)
    buffers = ModuleBuffers(module)
    assert len(buffers.tensors) == 4
    module[1].center = module.same = module.same + 1
    buffers.reclaim()
    assert module[1].center is module.same and not buffers.unfit
    module.same = module.same + 1
    buffers.reclaim()
    assert buffers.unfit == ["same"]


@pytest.mark.gpu
def test_buffers_follow_a_module_that_is_moved() -> None:
    """Lightning moves it to the host at the end. Parameters remain the same tensors."""
    module = _module().cuda()
    buffers, first = ModuleBuffers(module), module[1].center
    module.cpu()
    buffers.reclaim()
    assert module[1].center is first
    assert {own.device.type for own in buffers.tensors} == {"cpu"}
    assert torch.equal(first, torch.arange(4.0).view(2, 2))
