"""Tests that mistakes in settings, modules and callbacks are one clear error before training.

All ranks raise the same error.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning, StochasticWeightAveraging
from torch import nn

import lightning_hier as lh
from tests.trainer.fitting import (
    BMUF,
    BMUF_GTC,
    HIERARCHICAL,
    Net,
    Untrained,
    fit,
    fit_on_ranks,
    this_rank,
)
from tests.trainer.mistakes import Mistakes, check_mistakes


def _fit(strategy: Any, model: Any = None, **settings: Any) -> None:
    fit(strategy, 6, model or Untrained(), **settings)


def _with(strategy: Any, name: str, layer: nn.Module, *ranks: int) -> None:
    """Train with one layer replaced on some ranks."""
    model = Untrained()
    if this_rank() in ranks:
        setattr(model.layers, name, layer)
    _fit(strategy, model)


def _other_shapes() -> None:
    model = Untrained()
    if this_rank() == 3:
        model.layers[0], model.layers[2] = nn.Linear(4, 9), nn.Linear(9, 2)
    _fit(BMUF_GTC(), model)


class _OneGroupWithAmsgrad(Untrained):
    def configure_optimizers(self) -> Any:
        first, second = self.layers[0].parameters(), self.layers[2].parameters()
        return torch.optim.Adam([{"params": first}, {"params": second, "amsgrad": True}], lr=0.01)


class _Backwards(Untrained):
    """Lists its parameters in the other order on the last rank."""

    def configure_optimizers(self) -> Any:
        parameters = list(self.parameters())
        return torch.optim.SGD(parameters[:: -1 if this_rank() == 3 else 1], lr=0.1)


class _TwoTables(Untrained):
    """Registers two buffers of one size in the other order, if ``backwards``."""

    def __init__(self, backwards: bool) -> None:
        super().__init__()
        for name in ("second", "first") if backwards else ("first", "second"):
            self.register_buffer(name, torch.full((3,), float(len(name))))


def _sparse() -> None:
    model = Untrained()
    model.table = nn.Embedding(5, 4, sparse=True)
    _fit("bmuf_gtc", model)


def _complex() -> None:
    model = Untrained()
    model.spectrum = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    _fit("bmuf_gtc", model)


def _lazy() -> None:
    model = Untrained()
    model.layers[2] = nn.LazyLinear(2)
    _fit("bmuf", model)


class _SparseGradient(Net):
    """Only its step shows that a gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(5, 2))

    def loss(self, batch: Any) -> Any:
        rows = nn.functional.embedding(torch.arange(3), self.table, sparse=True)
        return super().loss(batch) + rows.square().sum()


MISTAKES: Mistakes = {
    "group_size": (
        lambda: _fit(BMUF_GTC(group_size=3)),
        r"group_size=3 with 4 ranks; sizes that do: 1, 2, 4",
    ),
    "groups_that_never_meet": (
        lambda: _fit(HIERARCHICAL(group_size=2, gradient_sync=lh.GTC(density=0.01))),
        r"block_sync=None needs one group.*2 groups that would never be synchronised",
    ),
    "momentum_for_no_number_of_models": (
        lambda: _fit(BMUF(block_lr=5.0, block_momentum="auto")),
        r"block_lr=5.*4 models.*lower block_lr to at most 4",
    ),
    "settings_differ": (
        lambda: _fit(BMUF(block_size=4 if this_rank() < 2 else 5)),
        r"block_size: 4 on ranks 0, 1; 5 on ranks 2, 3",
    ),
    "strategies_differ": (
        lambda: _fit("bmuf" if this_rank() else "two_stage_asgd"),
        r'"TwoStageASGDStrategy" on rank 0; "BMUFStrategy" on ranks 1, 2, 3',
    ),
    "trainers_differ": (
        lambda: _fit("bmuf", max_epochs=2 if this_rank() == 1 else 1),
        r"max_epochs: 1 on ranks 0, 2, 3; 2 on rank 1",
    ),
    "models_differ": (
        lambda: _with("bmuf", "2", nn.Linear(8, 2, bias=False), 2),
        r"parameter layers.2.bias \(2,\) torch.float32 only on ranks 0, 1, 3\.",
    ),
    "shapes_differ": (
        _other_shapes,
        r"layers.0.weight \(8, 4\).* on ranks 0, 1, 2;.*layers.0.weight \(9, 4\).* on rank 3",
    ),
    "optimizers_differ": (
        lambda: _fit("bmuf", Untrained(optimizer="Adam" if this_rank() == 1 else "SGD")),
        r"SGD as optimizer 0 only on ranks 0, 2, 3; Adam as optimizer 0 only on rank 1",
    ),
    "momentum_differs": (
        lambda: _fit(
            BMUF(local_momentum="average"), Untrained(momentum=0.0 if this_rank() == 1 else 0.9)
        ),
        r"momentum=0.9 in group 0 of optimizer 0 only on ranks 0, 2, 3; .*=0.0 .* rank 1\.",
    ),
    "rates_differ": (
        lambda: _fit("psp", Untrained(lr=0.1 if this_rank() else 0.2)),
        r"lr=0.2 in group 0 .* only on rank 0; lr=0.1 in group 0 .* only on ranks 1, 2, 3\.",
    ),
    "orders_of_parameters_differ": (
        lambda: _fit("gtc", _Backwards()),
        r"position \d+ is layers.0.weight in .* on ranks 0, 1, 2; layers.2.bias in .* on rank 3\.",
    ),
    "orders_of_layers_differ": (
        lambda: _fit("bmuf", _TwoTables(this_rank() == 2)),
        r"same tensors .*position 4 is buffer first .* 0, 1, 3; buffer second .* on rank 2\.",
    ),
    "no_momentum_to_average": (
        lambda: _fit(BMUF(local_momentum="average"), Untrained(optimizer="Adam")),
        r"local_momentum='average' averages.*got Adam: .*BMUFAdam",
    ),
    "sparse_adam": (
        lambda: _fit("bmuf_adam", Untrained(optimizer="SparseAdam")),
        r"got SparseAdam: use Adam, AdamW, NAdam or RAdam .*DiLoCo.* or BMUF\(",
    ),
    "amsgrad_of_one_group_of_parameters": (
        lambda: _fit("bmuf_adam", _OneGroupWithAmsgrad()),
        r"BMUFAdam can't be combined with amsgrad=True.*Leave out amsgrad",
    ),
    "sparse": (_sparse, r"sparse gradients are not supported, but table has sparse=True"),
    "sparse_gradient_of_a_step": (
        lambda: _fit("gtc", _SparseGradient()),
        r"sparse gradients are not supported, but a parameter has one: set sparse",
    ),
    "complex": (_complex, r"GTC compresses real gradients, but spectrum is complex: store it as"),
    "lazy": (_lazy, r"layers.2.weight, layers.2.bias of a lazy layer has no shape yet"),
    "batch_norm_over_all": (
        lambda: _fit("bmuf", nn.SyncBatchNorm.convert_sync_batchnorm(Net(batchnorm=True))),
        r"SyncBatchNorm 'layers.1' computes its statistics over the ranks \[0, 1, 2, 3\]",
    ),
    "nothing_to_train": (
        lambda: _fit("bmuf", Untrained().requires_grad_(False)),
        r"must have a trainable parameter",
    ),
    "pruning": (
        lambda: _fit("bmuf", callbacks=[ModelPruning("l1_unstructured")]),
        r"ModelPruning prunes by the weights.*torch.nn.utils.prune",
    ),
    "stochastic_averaging": (
        lambda: _fit("gtc", callbacks=[StochasticWeightAveraging(swa_lrs=0.01)]),
        r"StochasticWeightAveraging steps .*WeightAveraging\(\)",
    ),
    "validates_by_the_clock": (
        lambda: _fit("bmuf", val_check_interval="00:00:00:15"),
        r"val_check_interval of 15 s.*a number of batches",
    ),
}


def test_one_clear_error_on_every_rank() -> None:
    of_a_step = "NotImplementedError: sparse gradients are not supported, but a parameter has one"
    check_mistakes(__name__, kind=("ValueError", of_a_step))


def test_callbacks_that_couple_all_ranks_at_every_step_are_warned_of(tmp_path: Any) -> None:
    hourly = ModelCheckpoint(train_time_interval=timedelta(hours=1), dirpath=tmp_path)
    settings = {"max_time": "00:01:00:00", "enable_checkpointing": True, "callbacks": [hourly]}
    warned = fit_on_ranks(2, "bmuf", Net, 2, **settings)[0].warned
    assert any("max_time" in text and "interval='epoch'" in text for text in warned)
    assert any("train_time_interval" in text and "every_n_train_steps" in text for text in warned)
