"""Tensors of a dtype that collectives lack: trained all the same, or one error before training."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit
from tests.trainer.mistakes import check_mistake


class _Rare(Net):
    """Buffers that are not the same on all ranks."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        for number, dtype in enumerate(dtypes):
            values = torch.arange(3) + int(os.environ["RANK"])
            self.register_buffer(f"rare{number}", values.to(dtype))


def _train(make: Callable[[], Any], *dtypes: torch.dtype) -> list[list[float]]:
    model = _Rare(*dtypes)
    fit(make(), 2, model)
    return [buffer.float().tolist() for buffer in model.buffers()]


STRATEGIES: dict[str, Callable[[], Any]] = {
    "psp": lh.PSPStrategy,
    "bmuf": lh.BMUFStrategy,
    "model_averaging": partial(lh.ModelAveragingStrategy, block_size=1),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_buffers_are_kept_equal_where_ddp_does_not_send_them(name: str) -> None:
    dtypes = torch.int16, torch.uint16, torch.float8_e4m3fn, torch.bool
    of_first = [[0.0, 1.0, 2.0]] * 3 + [[0.0, 1.0, 1.0]]
    assert run_ranks(_train, 2, STRATEGIES[name], *dtypes) == [of_first] * 2


def _in_groups(dtype: torch.dtype) -> None:
    fit(
        lh.BMUFGTCStrategy(group_size=2, warmup_steps=0, density=0.01, block_size=50),
        2,
        _Rare(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.int16, torch.float8_e5m2])
def test_buffer_that_ddp_can_not_send_is_one_error(dtype: torch.dtype) -> None:
    check_mistake(partial(_in_groups, dtype), rf"can't send rare0 \({dtype}\) over gloo.*uint8")
