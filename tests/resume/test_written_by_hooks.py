"""A run goes on with the buffers and frozen parameters that hooks had written when it was saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import differences
from tests.trainer.fitting import Net, loader, make_trainer

STRATEGIES = {
    "averaging": partial(lh.ModelAveragingStrategy, block_size=4, warmup_steps=0),
    "nesterov": partial(
        lh.BMUFStrategy, block_size=4, block_momentum=0.5, block_lr=0.7, warmup_steps=0
    ),
    "overlap": partial(lh.BMUFStrategy, block_size=4, nesterov=False, overlap=True, warmup_steps=0),
    "one model": partial(lh.GTCStrategy, density=0.2, dense_below=10, warmup_steps=0),
    "virtual": partial(lh.BMUFStrategy, block_size=4, virtual_workers=2, warmup_steps=0),
}


class _Writing(Net):
    """Counts epochs, and moves a frozen parameter, as they end; the checkpoint is saved then."""

    epochs: Tensor

    def __init__(self) -> None:
        super().__init__(lr=0.2)
        self.register_buffer("epochs", torch.tensor(0))
        self.teacher = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.begun: list[tuple[int, float, Tensor]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            weight = self.layers[0].weight.detach().clone()
            self.begun.append((int(self.epochs), float(self.teacher.sum()), weight))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1
        self.teacher.data.add_(1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers.parameters(), lr=self.lr)


def _train(name: str, folder: Path) -> list[tuple[list[Any], dict[str, Tensor]]]:
    """A whole run, and one that goes on from its first epoch's end."""
    found = []
    for path in (None, folder / "epoch=0.ckpt"):
        saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        trainer = make_trainer(
            STRATEGIES[name](),
            max_epochs=3,
            enable_checkpointing=path is None,
            callbacks=[saving] if path is None else [],
        )
        model = _Writing()
        trainer.fit(model, loader(6), ckpt_path=path)
        found.append((model.begun, model.state_dict()))
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_run_goes_on_exactly(name: str, tmp_path: Path) -> None:
    for (begun, state), (resumed_begun, resumed_state) in run_ranks(_train, 2, name, tmp_path):
        later = begun[len(begun) // 3 :]
        assert len(later) == len(resumed_begun) > 0
        for (*held, weight), (*resumed, resumed_weight) in zip(later, resumed_begun, strict=True):
            assert resumed == held
            assert held[0] > 0 and held[1] == 3.0 * held[0]
            assert torch.equal(resumed_weight, weight)
        assert differences(state, resumed_state) == []
