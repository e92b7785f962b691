"""Tests tensors that change their role in training: teachers, buffers and layers that come and go.

Frozen parameters that hooks write are synchronised as buffers. New parameters are an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelPruning
from torch import Tensor, nn

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.resume.runs import DropoutNet, check_exact
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    GTC,
    HIERARCHICAL,
    Net,
    fit,
    fit_on_ranks,
    fitted,
    this_rank,
)
from tests.trainer.mistakes import Mistakes, errors_by_rank


def _rebind(teacher: Tensor, student: Tensor) -> None:
    teacher.data = 0.5 * teacher.data + 0.5 * student.data


def _write(teacher: Tensor, student: Tensor) -> None:
    teacher.data.mul_(0.5).add_(student.data, alpha=0.5)


class Student(DropoutNet):
    """Has a teacher in frozen parameters, which follows the student before every step.

    Notes the teacher in validation.
    """

    def __init__(
        self, optimizer: str = "SGD", *, update: Callable[..., None] = _write, **settings: Any
    ) -> None:
        super().__init__(optimizer, **settings)
        self.teacher = deepcopy(self.net[4]).requires_grad_(False)
        self.update = update

    def loss(self, batch: list[Tensor]) -> Tensor:
        hidden = self.net[:4](batch[0])
        return super().loss(batch) + 0.1 * (self.teacher(hidden) - batch[1]).square().mean()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.follow()
        return self.loss(batch)

    def follow(self) -> None:
        for own, other in zip(self.teacher.parameters(), self.net[4].parameters(), strict=True):
            self.update(own, other)

    def on_validation_epoch_end(self) -> None:
        self.notes.append(self.teacher.weight.clone())


class _WroteOnRank0(Student):
    """Has a teacher that only one rank writes, as a hook may do for one batch by chance."""

    def follow(self) -> None:
        if this_rank() == 0:
            super().follow()


_STREAMING = lh.DiLoCo(block_size=4, fragments=2, overlap=2)
STRATEGIES: dict[str, tuple[int, Any, Any]] = {
    "rebound": (2, partial(BMUF, across_dtype="int8"), partial(Student, update=_rebind)),
    "groups": (4, BMUF_GTC, _WroteOnRank0),
    "fragments": (2, partial(HIERARCHICAL, group_size=1, block_sync=_STREAMING), Student),
    "one model": (2, GTC, _WroteOnRank0),
    "servers": (2, lh.PSPStrategy, Student),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_teacher_is_one_on_all_ranks_where_it_is_seen(name: str, tmp_path: Any) -> None:
    """A validation at step 3 finds it before the first synchronisation."""
    ranks, strategy, model = STRATEGIES[name]
    path = tmp_path / "teacher.ckpt"
    settings: dict[str, Any] = {"validate": 2, "val_check_interval": 3, "num_sanity_val_steps": 0}
    first, *others = fit_on_ranks(ranks, strategy, model, save=path, max_epochs=2, **settings)
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert len(first.notes) == 4
    assert not torch.equal(first.notes[0], first.notes[1])
    for name_, value in first.state.items():
        assert torch.equal(saved[name_], value), name_
    for other in others:
        assert all(map(torch.equal, first.notes, other.notes))
        for name_, value in first.state.items():
            assert torch.equal(other.state[name_], value), name_


def _seen(validates: bool) -> list[Tensor]:
    settings = {"validate": 1, "val_check_interval": 3} if validates else {}
    return fitted(BMUF, Student, 8, num_sanity_val_steps=0, **settings).seen


def _with_and_without() -> bool:
    torch.manual_seed(this_rank())
    one = _seen(validates=True)
    torch.manual_seed(this_rank())
    return all(map(torch.equal, one, _seen(validates=False)))


def test_looking_at_a_teacher_changes_nothing() -> None:
    assert all(run_ranks(_with_and_without, 2))


def test_teacher_resumes_exactly(tmp_path: Any) -> None:
    """The save is in the first block."""
    check_exact(4, BMUF_GTC, tmp_path, number=2, make_model=Student)


class _Changing(Net):
    """Calls a function on the module at the start of one batch."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.layers[1] = nn.BatchNorm1d(8, affine=False)
        self.change = change

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.change(self)


def _fit(strategy: Any, change: Callable[[Any], None]) -> None:
    fit(strategy(), 6, _Changing(change))


def _replace_layer(model: Net) -> None:
    model.layers[2] = nn.Linear(8, 2)


def _remove_layer(model: Net) -> None:
    model.layers[2] = nn.Identity()


def _register_on_rank_1(model: Net) -> None:
    if this_rank() == 1:
        model.register_buffer("late", torch.zeros(3))


_REPLACED = "'layers.2.weight', 'layers.2.bias' new, 'layers.2.weight', .* configure_model"
MISTAKES: Mistakes = {
    "replaced": (partial(_fit, BMUF, _replace_layer), _REPLACED),
    "replaced in one model": (partial(_fit, GTC, _replace_layer), _REPLACED),
    "removed": (
        partial(_fit, lh.PSPStrategy, _remove_layer),
        "none new, 'layers.2.weight', 'layers.2.bias' gone.* configure_model",
    ),
    **{
        f"buffer of one rank under {name}": (
            partial(_fit, strategy, _register_on_rank_1),
            "OutOfStepError: the ranks train different parameters.*"
            r"late \(3,\) torch.float32 new buffer only on rank 1",
        )
        for name, strategy in (("bmuf", BMUF), ("psp", lh.PSPStrategy))
    },
}


def test_layers_that_are_replaced_or_removed_and_a_buffer_of_one_rank_are_errors() -> None:
    for rank in errors_by_rank(__name__, ranks=2):
        for name, (_, message) in MISTAKES.items():
            assert re.search(message, rank[name], re.DOTALL), rank[name]


def _new_buffers(model: Net) -> None:
    model.register_buffer("late", torch.full((3,), float(this_rank())))
    model.register_buffer("mask", torch.zeros(3 + this_rank()), persistent=False)
    model.layers[1] = nn.BatchNorm1d(8, affine=False)
    model.layers[1].running_mean.fill_(float(this_rank()))


@pytest.mark.parametrize("strategy", [BMUF, lh.PSPStrategy], ids=["bmuf", "psp"])
def test_new_buffers_are_synchronised(strategy: Any) -> None:
    """Those that are part of the model. Others may have another length on each rank."""
    first, other = fit_on_ranks(2, strategy, partial(_Changing, _new_buffers))
    assert first.state["late"].tolist() == other.state["late"].tolist() == [0.5] * 3
    name = "layers.1.running_mean"
    assert torch.equal(first.state[name], other.state[name])


def test_pruning_of_one_model() -> None:
    settings: dict[str, Any] = {"parameters_to_prune": None, "use_lottery_ticket_hypothesis": False}
    callbacks = [ModelPruning("l1_unstructured", amount=0.5, **settings)]
    first, other = fit_on_ranks(2, GTC, Net, max_epochs=2, callbacks=callbacks)
    assert torch.equal(first.weights, other.weights)
    assert (first.weights == 0.0).sum() > 10
