"""The singular vectors of ``spectral_norm`` keep their length where buffers are averaged."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer

STRATEGIES = {
    "bmuf": partial(lh.BMUFStrategy, block_size=4, warmup_steps=0),
    "psp": lh.PSPStrategy,
}


class _Normed(Net):
    """Both forms of torch; validation notes the buffers, and the largest singular values."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True, lr=0.5)
        nn.utils.spectral_norm(self.layers[0])
        nn.utils.parametrizations.spectral_norm(self.layers[2])
        # The vectors of ranks are far apart.
        torch.manual_seed(int(os.environ["RANK"]))
        self.looked: list[dict[str, Tensor]] = []
        self.norms: list[float] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for name, buffer in self.named_buffers():
            if name.endswith("_u"):
                buffer.copy_(nn.functional.normalize(torch.randn(len(buffer)), dim=0))

    def on_validation_epoch_end(self) -> None:
        self.looked.append({name: own.clone() for name, own in self.named_buffers()})


def _train(name: str) -> list[dict[str, Tensor]]:
    model = _Normed()
    trainer = make_trainer(STRATEGIES[name](), num_sanity_val_steps=0)
    trainer.fit(model, loader(6), loader(1))
    return [*model.looked, {name: own.clone() for name, own in model.named_buffers()}]


@pytest.mark.parametrize("name", STRATEGIES)
def test_vectors_have_length_one_and_statistics_are_averaged(name: str) -> None:
    ranks = run_ranks(_train, 2, name)
    for looked in ranks:
        assert len(looked) == 2
        for buffers, others in zip(looked, ranks[0], strict=True):
            directions = [key for key in buffers if key.endswith(("_u", "_v"))]
            assert len(directions) == 4
            for key in directions:
                assert torch.linalg.vector_norm(buffers[key]) == pytest.approx(1.0, abs=1e-5)
            assert all(torch.equal(value, others[key]) for key, value in buffers.items())
