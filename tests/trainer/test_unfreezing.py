"""Parameters that are unfrozen during training join groups and global model."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hier import BMUF, HierarchicalStrategy
from tests.ranks import run_ranks

# An epoch has 8 batches for each rank, so the second one begins in the middle of a block.
_BLOCK_SIZE = 3


class _Net(pl.LightningModule):
    """A body that is trained from the second epoch on, and a head that always is."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 1)
        self.frozen = frozen

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.head(self.body(inputs).tanh()), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": list(self.head.parameters()), "lr": 0.1}]
        if not self.frozen:
            groups.append({"params": list(self.body.parameters()), "lr": 0.0})
        return torch.optim.SGD(groups, lr=0.1)


class _Unfreeze(BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.body)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.body, optimizer, lr=0.1)


class _RaiseRate(Callback):
    """The control: trainable from the start, but at rate zero."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers[0].param_groups[1]["lr"] = 0.1


def _weights(group_size: int, frozen: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8 * 4 * 5, 6, generator=generator, dtype=torch.float64)
    data = TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2])
    model = _Net(frozen=frozen)
    pl.Trainer(
        strategy=HierarchicalStrategy(
            group_size=group_size, block_sync=BMUF(block_size=_BLOCK_SIZE, block_momentum=0.5)
        ),
        accelerator="cpu",
        devices=4,
        max_epochs=3,
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[_Unfreeze() if frozen else _RaiseRate()],
    ).fit(model, DataLoader(data, batch_size=5))
    return model.body.weight.detach(), model.head.weight.detach()


def _both(group_size: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return _weights(group_size, frozen=True), _weights(group_size, frozen=False)


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_unfreezing_in_mid_block_equals_a_rate_that_rises_from_zero(group_size: int) -> None:
    """W of an unfrozen parameter is its value, Delta zero; the others keep theirs."""
    results = run_ranks(_both, 4, group_size)
    for unfrozen, control in results:
        for ours, other in zip(unfrozen, control, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-12, atol=0.0)
    bodies = [unfrozen[0] for unfrozen, _ in results]
    assert all(torch.equal(body, bodies[0]) for body in bodies)
    assert not torch.equal(bodies[0], _Net(frozen=True).body.weight.double())
