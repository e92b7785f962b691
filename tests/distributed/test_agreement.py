"""Ranks compare settings by a hash, and broadcast their text only if they differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from lightning_hier.comm.agreement import require_same
from tests.ranks import run_ranks


def _compare() -> tuple[int, int, str]:
    """Bytes broadcast for equal settings, bytes for different settings, and the error."""
    dist.init_process_group("gloo")
    module: Any = dist
    broadcast, rows = dist.broadcast, []

    def count(tensor: torch.Tensor, **settings: Any) -> Any:
        rows.append(tensor.nbytes)
        return broadcast(tensor, **settings)

    module.broadcast = count
    settings = {f"parameter {number}": "(1024, 1024) torch.float32" for number in range(1000)}
    require_same(settings, torch.device("cpu"))
    equal = sum(rows)
    settings[f"parameter {5 + 2 * (dist.get_rank() == 2)}"] = "(7,)"
    with pytest.raises(ValueError, match="the same settings") as raised:
        require_same(settings, torch.device("cpu"))
    return equal, sum(rows) - equal, str(raised.value)


def test_equal_settings_are_compared_by_a_hash() -> None:
    """A rank sends a hash, and a mark of the place that is as long as a health report."""
    results = run_ranks(_compare, 3)
    for equal, different, error in results:
        assert equal <= 3 * 150
        assert different > 3 * 40_000
        assert 'parameter 5: "(7,)" on ranks 0, 1; "(1024, 1024) torch.float32" on rank 2' in error
        assert "parameter 6" not in error
    assert len(set(results)) == 1
