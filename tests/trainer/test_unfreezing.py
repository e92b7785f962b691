"""Tests that parameters unfrozen in training join the global model and the averaged moments."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning, Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hier import BMUF, BMUFAdam
from tests.ranks import run_ranks
from tests.trainer.fitting import GTC, HIERARCHICAL, Net, errors_on_ranks, loader, make_trainer

# An epoch has 8 batches for each rank, so the second one begins in the middle of a block.
_BLOCK_SIZE = 3


class _Net(pl.LightningModule):
    """A body that trains from the second epoch on, and a head that always trains."""

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
    """Control: the body is trainable from the start, at a learning rate of zero."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers[0].param_groups[1]["lr"] = 0.1


def _fit(model: _Net, strategy: Any, *callbacks: Callback) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8 * 4 * 5, 6, generator=generator, dtype=torch.float64)
    data = DataLoader(TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2]), batch_size=5)
    settings: dict[str, Any] = {"max_epochs": 3, "precision": "64-true"}
    make_trainer(strategy, callbacks=list(callbacks), **settings).fit(model, data)


def _both(group_size: int, overlap: bool) -> list[tuple[Tensor, Tensor]]:
    results = []
    for frozen in (True, False):
        model = _Net(frozen=frozen)
        sync = BMUF(block_size=_BLOCK_SIZE, block_momentum=0.5, overlap=overlap)
        strategy = HIERARCHICAL(group_size=group_size, block_sync=sync)
        _fit(model, strategy, _Unfreeze() if frozen else _RaiseRate())
        results.append((model.body.weight.detach(), model.head.weight.detach()))
    return results


def _both_in_all(cases: list[tuple[int, bool]]) -> list[list[tuple[Tensor, Tensor]]]:
    return [_both(*case) for case in cases]


def test_unfreezing_in_mid_block_equals_a_rate_that_rises_from_zero() -> None:
    """The global model of an unfrozen parameter is its value, and its filtered update is zero.

    Other parameters keep their state.
    """
    cases = [(1, False), (2, True)]
    for case, *results in zip(cases, *run_ranks(_both_in_all, 4, cases), strict=True):
        for unfrozen, control in results:
            for ours, other in zip(unfrozen, control, strict=True):
                assert (ours - other).abs().max() <= 1e-12 * other.abs().max(), case
        bodies = [unfrozen[0] for unfrozen, _ in results]
        assert all(torch.equal(body, bodies[0]) for body in bodies), case
        assert not torch.equal(bodies[0], _Net(frozen=True).body.weight.double()), case


class _AdamNet(_Net):
    """A body that is not frozen gets no gradient in the first epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        hidden = self.body(inputs)
        if self.body.weight.requires_grad and self.current_epoch == 0:
            hidden = hidden.detach()
        return nn.functional.mse_loss(self.head(hidden.tanh()), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        parts = [self.head] if self.frozen else [self.head, self.body]
        groups = [{"params": list(part.parameters())} for part in parts]
        return torch.optim.NAdam(groups, lr=0.1, betas=(0.5, 0.99))


class _Notes(Callback):
    """Notes weights, moments and step counts of body and head after every batch."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *rest: Any) -> None:
        state = trainer.optimizers[0].state
        self.seen.append(
            {
                f"{part} {name}": torch.as_tensor(value).detach().clone().double()
                for part in ("body", "head")
                for weight in [getattr(pl_module, part).weight]
                for name, value in {"weight": weight, **state.get(weight, {})}.items()
            }
        )


def _with_adam() -> list[list[dict[str, Tensor]]]:
    results = []
    for callbacks in ([_UnfreezeAtTheSameRate()], [_AddGroup()], []):
        notes = _Notes()
        adam = BMUFAdam(block_size=_BLOCK_SIZE, block_momentum=0.5, across="sharded")
        strategy = HIERARCHICAL(group_size=2, block_sync=adam, find_unused_parameters=True)
        _fit(_AdamNet(frozen=bool(callbacks)), strategy, notes, *callbacks)
        results.append(notes.seen)
    return results


class _UnfreezeAtTheSameRate(_Unfreeze):
    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.body, optimizer, initial_denom_lr=1.0)


class _AddGroup(Callback):
    """Gives the body, which is not frozen, to the optimizer in the second epoch."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            trainer.optimizers[0].add_param_group({"params": [*pl_module.body.parameters()]})


def test_moments_of_unfrozen_parameters_join_and_those_of_the_others_stay() -> None:
    """The state equals that of a body which was trainable but unused until then.

    The body has another place in the buffer, so sums over four ranks have another order. Values
    therefore agree up to the rounding of the largest one in their tensor.
    """
    outcomes = run_ranks(_with_adam, 4)
    for unfrozen, control in [(own, control) for *both, control in outcomes for own in both]:
        assert len(unfrozen) == len(control) == 24
        for batch, (ours, other) in enumerate(zip(unfrozen, control, strict=True)):
            assert ours.keys() == other.keys() or batch < 8
            for name, value in ours.items():
                apart = (value - other[name]).abs().max()
                assert apart <= 1e-12 * other[name].abs().max(), f"{name} after batch {batch}"
        assert unfrozen[-1]["body step"] < unfrozen[-1]["head step"]
        assert "body exp_avg" not in unfrozen[7]
        assert unfrozen[-1]["body exp_avg"].abs().max() > 0.0


class _Freezing(Net):
    """Freezes its first layer in the second epoch."""

    def on_train_epoch_start(self) -> None:
        self.layers[0].requires_grad_(self.current_epoch == 0)


def _freeze() -> list[Tensor]:
    model, strategy = _Freezing(), GTC(of="update", find_unused_parameters=True)
    make_trainer(strategy, max_epochs=2).fit(model, loader(6))
    return [seen[: model.layers[0].weight.numel()] for seen in model.seen]


class _WithinAStep(Net):
    """Unfreezes its first layer in a step, whose gradient is then not averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.layers[0].requires_grad_(batch_idx >= 2)
        return super().training_step(batch, batch_idx)


def test_unfreezing_within_a_step_is_one_error() -> None:
    for error in errors_on_ranks(2, "bmuf", _WithinAStep):
        assert error.startswith("RuntimeError: 2 parameters were unfrozen within a step, among ")


def test_a_parameter_that_is_frozen_again_has_the_values_of_the_group() -> None:
    """Before, ranks have local models, which contain what they have not sent of their updates."""
    one, two = run_ranks(_freeze, 2)
    assert not torch.equal(one[5], two[5])
    assert torch.equal(one[-1], two[-1])
