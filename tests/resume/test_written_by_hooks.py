"""A run goes on from what hooks had written into the model that was shown when it was saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import differences
from tests.trainer.fitting import Net, loader, make_trainer

BOUND = 0.2
STRATEGIES = {
    "averaging": partial(lh.ModelAveragingStrategy, block_size=4),
    "nesterov": partial(lh.BMUFStrategy, block_size=4, block_momentum=0.5, block_lr=0.7),
    "overlap": partial(lh.BMUFStrategy, block_size=4, nesterov=False, overlap=True),
    "one model": partial(lh.GTCStrategy, density=0.2, dense_below=10),
    "virtual": partial(lh.BMUFStrategy, block_size=4, virtual_workers=2),
}


class _Writing(Net):
    """Counts epochs and clips weights as they end; the checkpoint is saved right after that."""

    epochs: Tensor

    def __init__(self) -> None:
        super().__init__(lr=0.2)
        self.register_buffer("epochs", torch.tensor(0))
        self.begun: list[tuple[int, Tensor]] = []

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 0:
            self.begun.append((int(self.epochs), self.layers[0].weight.detach().clone()))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1
        self.layers[0].weight.data.clamp_(-BOUND, BOUND)


def _train(name: str, resumed_by: str, folder: Path) -> list[tuple[list[Any], dict[str, Tensor]]]:
    """A whole run, and one that goes on from its first epoch's end."""
    found = []
    for strategy, path in ((name, None), (resumed_by, folder / "epoch=0.ckpt")):
        saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        trainer = make_trainer(
            STRATEGIES[strategy](),
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
    for (begun, state), (resumed_begun, resumed_state) in run_ranks(
        _train, 2, name, name, tmp_path
    ):
        later = begun[len(begun) // 3 :]
        assert len(later) == len(resumed_begun) > 0
        for (epochs, weight), (resumed_epochs, resumed_weight) in zip(
            later, resumed_begun, strict=True
        ):
            assert resumed_epochs == epochs
            assert torch.equal(resumed_weight, weight)
        assert differences(state, resumed_state) == []


@pytest.mark.parametrize(("first", "then"), [("nesterov", "averaging"), ("averaging", "nesterov")])
def test_another_strategy_begins_with_what_was_written(
    first: str, then: str, tmp_path: Path
) -> None:
    """No block momentum is made of what a hook has written."""
    for _, (begun, _) in run_ranks(_train, 2, first, then, tmp_path):
        saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["state_dict"]
        epochs, weight = begun[0]
        assert epochs == 1
        assert torch.equal(weight, saved["layers.0.weight"])
