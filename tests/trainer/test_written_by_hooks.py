"""Tests hooks of the user that write to the module while it holds the global model.

Written buffers and frozen parameters keep their values. A written trained parameter is an error on
the ranks that wrote. Hooks may run under ``torch.inference_mode`` and may save.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.trainer.fitting import (
    AVERAGING,
    BMUF,
    BMUF_ADAM,
    GTC,
    Fitted,
    Net,
    fits_on_ranks,
    fitted,
    this_rank,
    weights,
)

_CLASSICAL = partial(BMUF, block_momentum=0.5, nesterov=False)
SYNCHRONOUS: dict[str, Any] = {
    "nesterov": partial(BMUF, block_momentum=0.5, block_lr=0.7),
    "overlap": partial(_CLASSICAL, overlap=True),
    "one model": partial(GTC, of="gradient"),
}
SERVERS: dict[str, Any] = {
    "psp": lh.PSPStrategy,
    "two-stage": partial(lh.TwoStageASGDStrategy, group_size=1),
}


class Writing(Net):
    """Sets a buffer at the start of an epoch, and a count and a frozen parameter at its end.

    Notes their values and the weight of a layer in each step.
    """

    beta: Tensor
    epochs: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(lr=0.2, **settings)
        self.register_buffer("beta", torch.tensor(0.0))
        self.register_buffer("epochs", torch.tensor(0))
        self.teacher = nn.Parameter(torch.zeros(3), requires_grad=False)

    def on_train_epoch_start(self) -> None:
        self.beta.fill_(0.5**self.current_epoch)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        held = self.current_epoch, float(self.beta), int(self.epochs), float(self.teacher.sum())
        self.notes.append((held, self.layers[0].weight.detach().clone()))
        return self.loss(batch)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1
        self.teacher.data.add_(1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers.parameters(), lr=self.lr)


def test_buffers_and_frozen_parameters_are_trained_with_as_they_were_written() -> None:
    fits = [partial(fitted, own, Writing, 3, max_epochs=3) for own in SYNCHRONOUS.values()]
    for result in chain(*fits_on_ranks(2, *fits)):
        held = [each for each, _ in result.notes]
        assert len(held) == 9
        assert held == [(epoch, 0.5**epoch, epoch, 3.0 * epoch) for epoch, *_ in held]
        assert (float(result.state["beta"]), int(result.state["epochs"])) == (0.25, 3)


class _WithStatistics(Writing):
    """Checks that the local statistics of BatchNorm are restored at the start of an epoch.

    It does not write frozen parameters, which servers do not allow.
    """

    def __init__(self) -> None:
        super().__init__(batchnorm=True)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0 and self.current_epoch:
            assert torch.equal(self.left, self.layers[1].running_mean)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left = self.layers[1].running_mean.clone()


def test_under_servers_written_buffers_stay_and_local_statistics_come_back() -> None:
    fits = [partial(fitted, own, _WithStatistics, 3, max_epochs=3) for own in SERVERS.values()]
    for result in chain(*fits_on_ranks(2, *fits)):
        held = [each[:3] for each, _ in result.notes]
        assert held == [(epoch, 0.5**epoch, epoch) for epoch in range(3) for _ in range(3)]
        assert (float(result.state["beta"]), int(result.state["epochs"])) == (0.25, 3)


def _weight(model: Net) -> Tensor:
    return next(model.layers.parameters()).data


def _negate(model: Net) -> None:
    """Keep the norm. A write through ``.data`` does not change the version counter."""
    _weight(model).neg_()


def _reorder_on_rank_0(model: Net) -> None:
    """Keep the sum, norm and set of values of each rank."""
    if this_rank() == 0:
        _weight(model).copy_(_weight(model).flip(0))


def _clip_on_all(model: Net) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def _clip_a_weight(model: Net) -> None:
    _weight(model).clamp_(-0.01, 0.01)
    model.layers[2].bias.data.mul_(1.0)


def _clip_a_weight_on_rank_0(model: Net) -> None:
    if this_rank() == 0:
        _clip_a_weight(model)


def _add_one(model: Net) -> None:
    for parameter in model.parameters():
        parameter.data.add_(1.0)


def _write_another_and_back(model: Net) -> None:
    before = _weight(model).clone()
    _weight(model).zero_()
    _weight(model).copy_(before)


class _WritingWeights(Net):
    """Writes in one hook, after the first step or from the start."""

    def __init__(
        self,
        hook: str,
        write: Callable[[Net], None],
        *,
        from_the_start: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.write, self.from_the_start = write, from_the_start
        setattr(self, hook, self._write)

    def _write(self, *args: Any) -> None:
        if self.global_step or self.from_the_start:
            self.write(self)


VALIDATING = {"validate": 1, "max_epochs": 2, "val_check_interval": 3}
ERROR = "RuntimeError: a hook wrote to trained parameters (layers.0.weight"


@pytest.mark.parametrize(
    ("name", "hook", "write", "ranks"),
    [
        ("nesterov", "on_train_epoch_start", _reorder_on_rank_0, {0}),
        ("overlap", "on_validation_epoch_end", _clip_on_all, {0, 1}),
    ],
)
def test_written_weights_are_an_error_on_every_rank_that_wrote(
    name: str, hook: str, write: Callable[[Net], None], ranks: set[int]
) -> None:
    model = partial(_WritingWeights, hook, write)
    for outcome in rank_outcomes(fitted, 2, SYNCHRONOUS[name], model, **VALIDATING):
        error = str(outcome.error)
        if outcome.rank in ranks:
            assert error.startswith(ERROR)
            assert "in on_train_batch_start or on_train_batch_end instead" in error
        else:
            assert f"rank {1 - outcome.rank}" in error


def test_checkpoint_of_written_weights_is_not_saved(tmp_path: Path) -> None:
    model = partial(_WritingWeights, "on_train_epoch_end", _negate)
    saves = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    for outcome in rank_outcomes(fitted, 2, BMUF, model, **saves):
        assert str(outcome.error).startswith(ERROR)
    assert not list(tmp_path.rglob("*.ckpt"))


class _AddingAndUnfreezing(Net):
    """Adds one to a bias after every batch, and unfreezes the first layer in the second epoch."""

    def __init__(self) -> None:
        super().__init__(optimizer="AdamW", lr=0.0)
        self.layers[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.layers[0].requires_grad_(self.current_epoch == 1)

    def on_train_batch_end(self, *args: Any) -> None:
        self.layers[2].bias.data.add_(1.0)


def test_weights_written_before_a_layer_is_unfrozen_are_kept() -> None:
    """With GTC of updates, DDP wraps the model of the group anew, which has no written values."""
    updates = partial(GTC, of="update", dense_below=10**6)
    before = Net().layers[2].bias
    for run in run_ranks(fitted, 2, updates, _AddingAndUnfreezing, 3, max_epochs=2):
        # After five of six steps, because the last value has not been exchanged.
        torch.testing.assert_close(run.state["layers.2.bias"], before + 5.0)


def _allowed() -> list[Fitted]:
    """Write at the end of an epoch what needs no synchronisation, and after a batch."""
    writes = (("nesterov", _write_another_and_back), ("one model", _clip_on_all))
    for name, write in writes:
        model = partial(_WritingWeights, "on_train_epoch_end", write)
        fitted(SYNCHRONOUS[name], model, **VALIDATING)
    adding = partial(_WritingWeights, "on_train_batch_end", _add_one, optimizer="AdamW", lr=0.0)
    updates = partial(GTC, of="update", dense_below=10**6)
    clipping = partial(_WritingWeights, "on_train_batch_end", _clip_on_all)
    return [fitted(AVERAGING, clipping), fitted(updates, adding, 5)]


def test_writes_that_are_no_error() -> None:
    """Restored weights, a single model, and the hook that the error names.

    What a hook adds there is averaged as it is. GTC of updates multiplies the steps of AdamW, but
    not what the hook adds after four of five.
    """
    for clipped, added in run_ranks(_allowed, 2):
        assert 0.0 < clipped.state["layers.0.weight"].abs().max() <= 0.01
        torch.testing.assert_close(added.weights, weights(Net()) + 4.0)


def test_parameters_that_are_written_under_servers_are_one_clear_error() -> None:
    model = partial(_WritingWeights, "on_train_start", _clip_a_weight, from_the_start=True)
    for outcome in rank_outcomes(fitted, 2, SERVERS["two-stage"], model, 3, max_epochs=2):
        assert (
            "RuntimeError: parameters were written to outside of training steps (layers.0.weight)"
            in str(outcome.error)
        )
        assert "in setup or configure_model" in str(outcome.error)


def test_only_the_rank_that_wrote_under_servers_raises_that_error() -> None:
    model = partial(_WritingWeights, "on_train_epoch_end", _clip_a_weight_on_rank_0)
    alone, other = rank_outcomes(fitted, 2, lh.PSPStrategy, model, 3, max_epochs=2)
    assert "were written to outside of training steps" in str(alone.error)
    assert "rank 0" in str(other.error)


STRATEGIES: dict[str, Any] = {
    "adam": partial(BMUF_ADAM, block_size=2),
    "overlap": partial(BMUF, block_size=2, overlap=True),
    "momentum": partial(BMUF, block_size=2, local_momentum="average"),
}


class _Net(Net):
    """Replaces the tensor of a buffer after every batch, and may save then."""

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


def _saving_and_not() -> dict[str, list[Fitted]]:
    fits = {}
    for name, strategy in STRATEGIES.items():
        make = partial(_Net, optimizer="Adam" if name == "adam" else "SGD")
        models = [partial(make, saves) for saves in (True, False)]
        fits[name] = [fitted(strategy, own, 8, accumulate_grad_batches=2) for own in models]
    return fits


def test_state_that_is_created_in_a_save_is_trained_with() -> None:
    for fits in run_ranks(_saving_and_not, 2):
        for name, (saving, other) in fits.items():
            assert torch.equal(saving.weights, other.weights), name
            assert torch.equal(saving.state["center"], other.state["center"]), name
