"""Tensors of a dtype that collectives lack: trained all the same, or one error before training."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF_GTC, Net, fit, fitted, this_rank
from tests.trainer.mistakes import check_mistake


class _Rare(Net):
    """Buffers that are not the same on all ranks."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        for number, dtype in enumerate(dtypes):
            values = torch.arange(3) + this_rank()
            self.register_buffer(f"rare{number}", values.to(dtype))


def _train(strategy: Any, *dtypes: torch.dtype) -> list[list[float]]:
    """As numbers: torch can't pickle all of these dtypes."""
    model = _Rare(*dtypes)
    fit(strategy(), 2, model)
    return [buffer.float().tolist() for buffer in model.buffers()]


@pytest.mark.parametrize(
    "strategy",
    [lh.PSPStrategy, lh.BMUFStrategy, partial(lh.ModelAveragingStrategy, block_size=1)],
    ids=["psp", "bmuf", "model_averaging"],
)
def test_buffers_are_kept_equal_where_ddp_does_not_send_them(strategy: Any) -> None:
    dtypes = torch.int16, torch.uint16, torch.float8_e4m3fn, torch.bool
    of_first = [[0.0, 1.0, 2.0]] * 3 + [[0.0, 1.0, 1.0]]
    assert run_ranks(_train, 2, strategy, *dtypes) == [of_first] * 2


@pytest.mark.parametrize("dtype", [torch.int16, torch.float8_e5m2])
def test_buffer_that_ddp_can_not_send_is_one_error(dtype: torch.dtype) -> None:
    message = rf"can't send rare0 \({dtype}\) over gloo.*uint8"
    check_mistake(fitted, message, BMUF_GTC, partial(_Rare, dtype))
