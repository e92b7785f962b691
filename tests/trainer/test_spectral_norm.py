"""The singular vectors of ``spectral_norm`` keep their length where buffers are averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lightning_hier as lh
from tests.trainer.fitting import BMUF, Net, fit_on_ranks, this_rank


class _Normed(Net):
    """Both forms of torch; validation notes the buffers."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True, lr=0.5)
        nn.utils.spectral_norm(self.layers[0])
        nn.utils.parametrizations.spectral_norm(self.layers[2])
        # The vectors of ranks are far apart.
        torch.manual_seed(this_rank())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for name, buffer in self.named_buffers():
            if name.endswith("_u"):
                buffer.copy_(nn.functional.normalize(torch.randn(len(buffer)), dim=0))

    def on_validation_epoch_end(self) -> None:
        self.notes.append({name: own.clone() for name, own in self.named_buffers()})


@pytest.mark.parametrize("strategy", [BMUF, lh.PSPStrategy], ids=["bmuf", "psp"])
def test_vectors_have_length_one_and_statistics_are_averaged(strategy: Any) -> None:
    ranks = fit_on_ranks(2, strategy, _Normed, validate=1, num_sanity_val_steps=0)
    for own in ranks:
        looked = [*own.notes, {name: own.state[name] for name in own.notes[0]}]
        others = [*ranks[0].notes, ranks[0].state]
        assert len(looked) == 2
        for buffers, first in zip(looked, others, strict=True):
            directions = [key for key in buffers if key.endswith(("_u", "_v"))]
            assert len(directions) == 4
            for key in directions:
                assert torch.linalg.vector_norm(buffers[key]) == pytest.approx(1.0, abs=1e-5)
            assert all(torch.equal(value, first[key]) for key, value in buffers.items())
