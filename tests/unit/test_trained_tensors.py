"""What ranks compare before every batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from lightning_hier.comm.blocks import trained
from lightning_hier.comm.blocks.health_exchange import HealthExchange
from lightning_hier.comm.blocks.module_buffers import ModuleBuffers
from lightning_hier.comm.worker import Worker


def test_frozen_parameters_are_not_read_before_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    tensors = trained.TrainedTensors(module, [], ModuleBuffers(module))
    here: Any = SimpleNamespace(device="cpu")
    group: Any = SimpleNamespace(size=2, gather_rows=lambda own, kind: own.repeat(2))
    exchange = HealthExchange(here, Worker(), tensors)

    def read(_: Any) -> list[int]:
        raise AssertionError("frozen parameters were read")

    monkeypatch.setattr(trained, "bit_sums", read)
    assert exchange.same_parameters_in(group)
