"""A save in a hook that runs under ``torch.inference_mode``, before the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.fitting import BMUF, BMUF_ADAM, Net, fit_on_ranks

STRATEGIES: dict[str, Any] = {
    "adam": partial(BMUF_ADAM, block_size=2),
    "overlap": partial(BMUF, block_size=2, overlap=True),
    "momentum": partial(BMUF, block_size=2, local_momentum="average"),
    "virtual": partial(BMUF_ADAM, block_size=2, virtual_workers=2),
}


class _Net(Net):
    """Binds another tensor to a buffer's name whenever it sees a batch, and may save then."""

    center: Tensor

    def __init__(self, saves: bool, **settings: Any) -> None:
        super().__init__(batchnorm=True, lr=0.02, **settings)
        self.register_buffer("center", torch.zeros(4))
        self.saves = saves

    @torch.inference_mode()
    def on_train_batch_end(self, outputs: Any, batch: list[Tensor], batch_idx: int) -> None:
        self.center = 0.5 * self.center + 1.0
        if self.saves and batch_idx % 3 == 0:
            state = self.trainer.strategy.lightning_module_state_dict()
            assert "center" in state

    def on_train_end(self) -> None:
        super().on_train_end()
        state = [v for one in self.trainer.optimizers[0].state.values() for v in one.values()]
        assert not any(torch.as_tensor(value).is_inference() for value in state)


@pytest.mark.parametrize("name", STRATEGIES)
def test_state_that_is_made_in_a_save_is_trained_with(name: str) -> None:
    kind = "Adam" if name in ("adam", "virtual") else "SGD"
    models = [partial(_Net, saves, optimizer=kind) for saves in (True, False)]
    runs = [
        fit_on_ranks(2, STRATEGIES[name], model, 16, accumulate_grad_batches=4) for model in models
    ]
    for saving, other in zip(*runs, strict=True):
        assert torch.equal(saving.weights, other.weights)
        assert torch.equal(saving.state["center"], other.state["center"])
