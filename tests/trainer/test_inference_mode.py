"""A save in a hook that runs under ``torch.inference_mode``, before the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, make_trainer, weights

STRATEGIES: dict[str, Any] = {
    "adam": partial(lh.BMUFAdamStrategy, block_size=2, warmup_steps=0, local_beta1="keep"),
    "overlap": partial(lh.BMUFStrategy, block_size=2, overlap=True, warmup_steps=0),
    "momentum": partial(lh.BMUFStrategy, block_size=2, local_momentum="average", warmup_steps=0),
    "virtual": partial(
        lh.BMUFAdamStrategy, block_size=2, virtual_workers=2, warmup_steps=0, local_beta1="keep"
    ),
}


class _Net(Net):
    """Binds another tensor to a buffer's name whenever it sees a batch."""

    center: Tensor

    def __init__(self, adam: bool) -> None:
        super().__init__(batchnorm=True)
        self.adam = adam
        self.register_buffer("center", torch.zeros(4))
        self.saves = False

    @torch.inference_mode()
    def on_train_batch_end(self, outputs: Any, batch: list[Tensor], batch_idx: int) -> None:
        self.center = 0.5 * self.center + 1.0
        if self.saves and batch_idx % 3 == 0:
            state = self.trainer.strategy.lightning_module_state_dict()
            assert "center" in state

    def configure_optimizers(self) -> Any:
        if self.adam:
            return torch.optim.Adam(self.parameters(), lr=0.02)
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def _train() -> dict[tuple[str, bool], tuple[Tensor, bool]]:
    found: dict[tuple[str, bool], tuple[Tensor, bool]] = {}
    for name, make in STRATEGIES.items():
        for saves in (True, False):
            model = _Net(name in ("adam", "virtual"))
            model.saves = saves
            trainer = make_trainer(make(), accumulate_grad_batches=4)
            trainer.fit(model, loader(16))
            state = [v for one in trainer.optimizers[0].state.values() for v in one.values()]
            inference = any(torch.as_tensor(value).is_inference() for value in state)
            found[name, saves] = torch.cat([weights(model), model.center]), inference
    return found


def test_state_that_is_made_in_a_save_is_trained_with() -> None:
    for found in run_ranks(_train, 2):
        for name in STRATEGIES:
            with_saves, inference = found[name, True]
            assert not inference, name
            assert torch.equal(with_saves, found[name, False][0]), name
