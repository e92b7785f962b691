"""What the user's hooks write into the module while it holds the global model.

Buffers and frozen parameters stay written; a trained parameter is an error on ranks that wrote.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import rank_outcomes, run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer

CLASSICAL = {"block_size": 4, "block_momentum": 0.5, "nesterov": False}
STRATEGIES: dict[str, Callable[..., Any]] = {
    "averaging": partial(lh.ModelAveragingStrategy, block_size=4, warmup_steps=0),
    "nesterov": partial(
        lh.BMUFStrategy, block_size=4, block_momentum=0.5, block_lr=0.7, warmup_steps=0
    ),
    "overlap": partial(lh.BMUFStrategy, **CLASSICAL, overlap=True, warmup_steps=0),
    "virtual": partial(lh.BMUFStrategy, **CLASSICAL, virtual_workers=2, warmup_steps=0),
    "one model": partial(lh.GTCStrategy, density=0.2, dense_below=10, warmup_steps=0),
}


class _Writing(Net):
    """Sets a buffer as epochs begin; counts them, and moves a frozen parameter, as they end."""

    beta: Tensor
    epochs: Tensor

    def __init__(self) -> None:
        super().__init__(lr=0.2)
        self.register_buffer("beta", torch.tensor(0.0))
        self.register_buffer("epochs", torch.tensor(0))
        self.teacher = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.trained: list[tuple[int, float, int, float]] = []

    def on_train_epoch_start(self) -> None:
        self.beta.fill_(0.5**self.current_epoch)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        held = float(self.beta), int(self.epochs), float(self.teacher.sum())
        self.trained.append((self.current_epoch, *held))
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.epochs += 1
        self.teacher.data.add_(1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers.parameters(), lr=self.lr)


def _train(names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        model = _Writing()
        fit(STRATEGIES[name](), batches=6, model=model, max_epochs=3)
        found[name] = model.trained, (float(model.beta), int(model.epochs))
    return found


def test_buffers_and_frozen_parameters_are_trained_with_as_they_were_written() -> None:
    for own in run_ranks(_train, 2, list(STRATEGIES)):
        for name, (trained, left) in own.items():
            assert len(trained) == 18, name
            for epoch, *held in trained:
                assert held == [0.5**epoch, epoch, 3.0 * epoch], name
            assert left == (0.25, 3), name


def _weight(model: Net) -> Tensor:
    weight = model.layers[0].weight
    assert isinstance(weight, Tensor)
    return weight


def _negate_on_rank_1(model: Net) -> None:
    """Of equal norm, and through ``.data``, which moves no counter."""
    if os.environ["RANK"] == "1":
        _weight(model).data.neg_()


def _reorder_on_rank_0(model: Net) -> None:
    """Each rank's sum, norm and set of values stay what they were."""
    if os.environ["RANK"] == "0":
        _weight(model).data.copy_(_weight(model).data.flip(0))


def _clip_on_all(model: Net) -> None:
    for own in model.parameters():
        own.data.clamp_(-0.01, 0.01)


def _write_another_and_back(model: Net) -> None:
    kept = _weight(model).detach().clone()
    _weight(model).data.zero_()
    _weight(model).data.copy_(kept)


class _WritingWeights(Net):
    def __init__(self, hook: str, write: Callable[[Net], None]) -> None:
        super().__init__()
        self.write = write
        setattr(self, hook, self._write)

    def _write(self, *args: Any) -> None:
        if self.global_step:
            self.write(self)


def _write_weights(name: str, hook: str, write: Callable[[Net], None]) -> None:
    model = _WritingWeights(hook, write)
    trainer = make_trainer(STRATEGIES[name](), max_epochs=2, val_check_interval=3)
    trainer.fit(model, loader(6), loader(1))


def _write_in_a_save(write: Callable[[Net], None], folder: str) -> None:
    model = _WritingWeights("on_train_epoch_end", write)
    fit(
        lh.BMUFStrategy(block_size=4, warmup_steps=0),
        6,
        model,
        enable_checkpointing=True,
        default_root_dir=folder,
    )


ERROR = "RuntimeError: a hook wrote to trained parameters (layers.0.weight"


@pytest.mark.parametrize(
    ("name", "hook", "write", "ranks"),
    [
        ("averaging", "on_train_epoch_end", _negate_on_rank_1, {1}),
        ("nesterov", "on_train_epoch_start", _reorder_on_rank_0, {0}),
        ("overlap", "on_validation_epoch_end", _clip_on_all, {0, 1}),
        ("virtual", "on_train_epoch_end", _negate_on_rank_1, {1}),
    ],
)
def test_written_weights_are_an_error_on_every_rank_that_wrote(
    name: str, hook: str, write: Callable[[Net], None], ranks: set[int]
) -> None:
    for outcome in rank_outcomes(_write_weights, 2, name, hook, write):
        if outcome.rank in ranks:
            error = str(outcome.error)
            assert error.startswith(ERROR)
            assert "in on_train_batch_start or on_train_batch_end instead" in error
        else:
            assert f"rank {1 - outcome.rank}" in str(outcome.error)


def test_checkpoint_of_written_weights_is_not_saved(tmp_path: Any) -> None:
    other, wrote = rank_outcomes(_write_in_a_save, 2, _negate_on_rank_1, str(tmp_path))
    assert str(wrote.error).startswith(ERROR)
    assert "rank 1" in str(other.error)
    assert not list(tmp_path.rglob("*.ckpt"))


def _train_on(hook: str) -> None:
    for write, name in ((_write_another_and_back, "nesterov"), (_clip_on_all, "one model")):
        _write_weights(name, hook, write)


def test_what_is_put_back_and_what_all_ranks_train_is_no_error() -> None:
    run_ranks(_train_on, 2, "on_train_epoch_end")


def _clip_batches() -> float:
    model = _WritingWeights("on_train_batch_end", _clip_on_all)
    fit(lh.ModelAveragingStrategy(block_size=4, warmup_steps=0), 6, model)
    return float(_weight(model).detach().abs().max())


def test_the_hook_that_the_error_names_works() -> None:
    for largest in run_ranks(_clip_batches, 2):
        assert 0.0 < largest <= 0.01
