"""Tests buffers whose dtype collectives do not support, and buffers of spectral normalisation.

Singular vectors must not be averaged.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import BMUF, BMUF_GTC, Net, fit, fit_on_ranks, fitted, this_rank
from tests.trainer.mistakes import check_mistake


class _Rare(Net):
    """Has buffers that differ between ranks."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        for number, dtype in enumerate(dtypes):
            values = torch.arange(3) + this_rank()
            self.register_buffer(f"rare{number}", values.to(dtype))


def _train(strategy: Any, *dtypes: torch.dtype) -> list[list[float]]:
    """Train, and return the buffers as numbers. torch can't pickle all of these dtypes."""
    model = _Rare(*dtypes)
    fit(strategy(), 2, model)
    return [buffer.float().tolist() for buffer in model.buffers()]


@pytest.mark.parametrize("strategy", [lh.PSPStrategy, lh.BMUFStrategy], ids=["psp", "bmuf"])
def test_buffers_are_kept_equal_where_ddp_does_not_send_them(strategy: Any) -> None:
    dtypes = torch.int16, torch.uint16, torch.float8_e4m3fn, torch.bool
    of_first = [[0.0, 1.0, 2.0]] * 3 + [[0.0, 1.0, 1.0]]
    assert run_ranks(_train, 2, strategy, *dtypes) == [of_first] * 2


def test_buffer_that_ddp_can_not_send_is_one_error() -> None:
    message = r"can't send rare0 \(torch.int16\) over gloo.*uint8"
    check_mistake(fitted, message, BMUF_GTC, partial(_Rare, torch.int16))


class _Normed(Net):
    """Has both kinds of spectral normalisation of torch, and notes the buffers in validation."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True, lr=0.5)
        nn.utils.spectral_norm(self.layers[0])
        nn.utils.parametrizations.spectral_norm(self.layers[2])
        # The singular vectors differ much between ranks.
        torch.manual_seed(this_rank())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for name, buffer in self.named_buffers():
            if name.endswith("_u"):
                buffer.copy_(nn.functional.normalize(torch.randn(len(buffer)), dim=0))

    def on_validation_epoch_end(self) -> None:
        self.notes.append({name: buffer.clone() for name, buffer in self.named_buffers()})


@pytest.mark.parametrize("strategy", [BMUF, lh.PSPStrategy], ids=["bmuf", "psp"])
def test_vectors_have_length_one_and_statistics_are_averaged(strategy: Any) -> None:
    ranks = fit_on_ranks(2, strategy, _Normed, validate=1, num_sanity_val_steps=0)
    for result in ranks:
        evaluated = [*result.notes, {name: result.state[name] for name in result.notes[0]}]
        of_first = [*ranks[0].notes, ranks[0].state]
        assert len(evaluated) == 2
        for buffers, first in zip(evaluated, of_first, strict=True):
            directions = [key for key in buffers if key.endswith(("_u", "_v"))]
            assert len(directions) == 4
            for key in directions:
                assert torch.linalg.vector_norm(buffers[key]) == pytest.approx(1.0, abs=1e-5)
            assert all(torch.equal(value, first[key]) for key, value in buffers.items())
