"""A mistake gets one clear error on every rank before training."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer
from tests.trainer.mistakes import check_mistake


def _rank() -> int:
    return int(os.environ["RANK"])


class _Untrained(Net):
    """Fails if it is asked to train: every mistake must come to light before."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        raise AssertionError("training has begun")


def _group_size() -> None:
    fit(
        lh.BMUFGTCStrategy(group_size=3, warmup_steps=0, density=0.01, block_size=50),
        model=_Untrained(),
    )


def _groups_that_never_meet() -> None:
    strategy = lh.HierarchicalStrategy(
        group_size=2, gradient_sync=lh.GTC(density=0.01), warmup_steps=0
    )
    fit(strategy, model=_Untrained())


def _momentum_for_no_number_of_models() -> None:
    fit(lh.BMUFStrategy(block_lr=5.0, warmup_steps=0, block_size=50), model=_Untrained())


def _settings_differ() -> None:
    fit(lh.BMUFStrategy(block_size=4 if _rank() < 2 else 5, warmup_steps=0), model=_Untrained())


def _limits_differ() -> None:
    minutes = 20 if _rank() else 10
    fit(
        lh.BMUFStrategy(timeout=timedelta(minutes=minutes), warmup_steps=0, block_size=50),
        model=_Untrained(),
    )


def _strategies_differ() -> None:
    fit("bmuf" if _rank() else "model_averaging", model=_Untrained())


def _trainers_differ() -> None:
    fit("bmuf", model=_Untrained(), max_epochs=2 if _rank() == 1 else 1)


def _validates_by_the_clock() -> None:
    fit("bmuf", model=_Untrained(), val_check_interval="00:00:00:15")


def _models_differ() -> None:
    model = _Untrained()
    if _rank() == 2:
        model.layers[2] = torch.nn.Linear(8, 2, bias=False)
    fit("bmuf", model=model)


def _shapes_differ() -> None:
    model = _Untrained()
    if _rank() == 3:
        model.layers[0] = torch.nn.Linear(4, 9)
        model.layers[2] = torch.nn.Linear(9, 2)
    fit(lh.BMUFGTCStrategy(group_size=2, warmup_steps=0, density=0.01, block_size=50), model=model)


class _OtherOptimizer(_Untrained):
    def configure_optimizers(self) -> Any:
        kind = torch.optim.Adam if _rank() == 1 else torch.optim.SGD
        return kind(self.parameters(), lr=0.01)


def _optimizers_differ() -> None:
    fit("bmuf", model=_OtherOptimizer())


class _Adam(_Untrained):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def _no_momentum_to_average() -> None:
    fit(lh.BMUFStrategy(local_momentum="average", warmup_steps=0, block_size=50), model=_Adam())


class _NotThatAdam(_Untrained):
    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.kind, self.options = kind, options

    def configure_optimizers(self) -> Any:
        return getattr(torch.optim, self.kind)(self.parameters(), lr=0.01, **self.options)


def _sparse_adam() -> None:
    fit("bmuf_adam", model=_NotThatAdam("SparseAdam"))


def _adagrad() -> None:
    fit("bmuf_adam", model=_NotThatAdam("Adagrad"))


def _sgd() -> None:
    fit("bmuf_adam", model=_NotThatAdam("SGD"))


def _amsgrad() -> None:
    fit("bmuf_adam", model=_NotThatAdam("AdamW", amsgrad=True))


def _amsgrad_of_one_group_of_parameters() -> None:
    class Groups(_Untrained):
        def configure_optimizers(self) -> Any:
            first, second = self.layers[0].parameters(), self.layers[2].parameters()
            groups = [{"params": first}, {"params": second, "amsgrad": True}]
            return torch.optim.Adam(groups, lr=0.01)

    fit("bmuf_adam", model=Groups())


def _sparse() -> None:
    model = _Untrained()
    model.table = torch.nn.Embedding(5, 4, sparse=True)
    fit("bmuf_gtc", model=model)


def _nothing_to_train() -> None:
    model = _Untrained()
    model.requires_grad_(False)
    fit("bmuf", model=model)


def _lottery_ticket() -> None:
    fit("bmuf", model=_Untrained(), callbacks=[ModelPruning("l1_unstructured")])


def _static_graph() -> None:
    fit(lh.GTCStrategy(static_graph=True, warmup_steps=0, density=0.01), model=_Untrained())


def _hook() -> None:
    fit(lh.BMUFStrategy(ddp_comm_hook=print, warmup_steps=0, block_size=50), model=_Untrained())


def _batches_differ() -> None:
    trainer = make_trainer("bmuf", use_distributed_sampler=False)
    trainer.fit(_Untrained(), loader(3 if _rank() == 1 else 5))


CASES: list[tuple[Callable[[], None], str]] = [
    (_group_size, r"group_size=3 with 4 ranks; sizes that do: 1, 2, 4"),
    (_groups_that_never_meet, r"block_sync=None needs one group.*2 groups that would never meet"),
    (_momentum_for_no_number_of_models, r"block_lr=5.*4 models.*lower block_lr to at most 4"),
    (_settings_differ, r"block_sync: .*block_size=4.* on ranks 0, 1; .*block_size=5.* ranks 2, 3"),
    (_limits_differ, r'timeout: "0:10:00" on rank 0; "0:20:00" on ranks 1, 2, 3'),
    (_strategies_differ, r'"ModelAveragingStrategy" on rank 0; "BMUFStrategy" on ranks 1, 2, 3'),
    (_trainers_differ, r"max_epochs: 1 on ranks 0, 2, 3; 2 on rank 1"),
    (_models_differ, r"layers.2.bias: .* on ranks 0, 1, 3; null on rank 2"),
    (_shapes_differ, r"layers.0.weight: \"\(8, 4\).* on ranks 0, 1, 2; \"\(9, 4\).* on rank 3"),
    (_optimizers_differ, r'optimizers: \["SGD"\] on ranks 0, 2, 3; \["Adam"\] on rank 1'),
    (_no_momentum_to_average, r"local_momentum='average' averages.*got Adam: .*BMUFAdam"),
    (_sparse_adam, r"got SparseAdam: use Adam, AdamW, NAdam or RAdam, or BMUF\("),
    (_adagrad, r"got Adagrad: use Adam, AdamW, NAdam or RAdam, or BMUF\("),
    (_sgd, r"got SGD: use Adam, AdamW, NAdam or RAdam, or BMUF\("),
    (_amsgrad, r"BMUFAdam can't be combined with amsgrad=True.*Leave out amsgrad"),
    (_amsgrad_of_one_group_of_parameters, r"can't be combined with amsgrad=True"),
    (_sparse, r"sparse gradients are not supported, and table has sparse=True"),
    (_nothing_to_train, r"no trainable parameter"),
    (_lottery_ticket, r"ModelPruning can't set weights back.*use_lottery_ticket_hypothesis=False"),
    (_static_graph, r"static_graph can't be set, got True.*find_unused_parameters"),
    (_hook, r"ddp_comm_hook can't be set.*gradient_sync=CommHook"),
    (_validates_by_the_clock, r"val_check_interval of 15 s.*a number of batches"),
    (_batches_differ, r"numbers of training batches: 20 on ranks 0, 2, 3; 12 on rank 1"),
]


@pytest.mark.parametrize(
    ("mistake", "message"), CASES, ids=[case[0].__name__.strip("_") for case in CASES]
)
def test_one_clear_error_on_every_rank(mistake: Callable[[], None], message: str) -> None:
    check_mistake(mistake, message)


def _poison_between_blocks(group_size: int) -> None:
    class Poisoned(Net):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1 and _rank() == 2:
                with torch.no_grad():
                    self.layers[2].weight[0, 0] = float("nan")

    strategy = lh.HierarchicalStrategy(
        group_size=group_size, block_sync=lh.BMUF(block_size=3, across="leader"), warmup_steps=0
    )
    fit(strategy, 6, Poisoned())


@pytest.mark.parametrize("group_size", [1, 2])
def test_model_that_is_not_finite_is_kept_out_and_named(group_size: int) -> None:
    errors = run_ranks(_poison_between_blocks, 4, group_size, expect_failure=True)
    named = "rank 2" if group_size == 1 else "rank"
    for error in errors:
        assert error.startswith("NonFiniteModelError")
        assert f"local model of {named}" in error and "holds NaN or inf after 3 steps" in error
        assert "kept out of the global model" in error
    assert len(set(errors)) == 1


def _coupling_callbacks() -> list[str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(
            "bmuf",
            2,
            max_time="00:01:00:00",
            enable_checkpointing=True,
            callbacks=[ModelCheckpoint(train_time_interval=_hour(), dirpath=os.environ["FOLDER"])],
        )
    return [str(warning.message) for warning in caught]


def _hour() -> Any:
    from datetime import timedelta

    return timedelta(hours=1)


def test_callbacks_that_couple_all_ranks_at_every_step_are_warned_of(tmp_path: Any) -> None:
    first, _ = run_ranks(_coupling_callbacks, 2, env={"FOLDER": str(tmp_path)})
    assert any("max_time" in said and "interval='epoch'" in said for said in first)
    assert any("train_time_interval" in said and "every_n_train_steps" in said for said in first)
