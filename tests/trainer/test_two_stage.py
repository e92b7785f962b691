"""Two-stage ASGD as a user meets it, on several ranks and groups, with ranks that die."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

import lightning_hier as lh
from tests.ranks import RankOutcome, rank_outcomes, run_ranks
from tests.trainer.fitting import Net, fit, loader, make_trainer, weights

LIMIT = timedelta(seconds=30)


def _rank() -> int:
    return int(os.environ["RANK"])


def _two_stage(**settings: Any) -> lh.TwoStageASGDStrategy:
    return lh.TwoStageASGDStrategy(**{"timeout": LIMIT, **settings})


class _Net64(Net):
    def __init__(self) -> None:
        super().__init__()
        self.double()


def _doubles(batches: int) -> Any:
    data = loader(batches)
    data.dataset.tensors = tuple(tensor.double() for tensor in data.dataset.tensors)
    return data


def _fit64(strategy: Any, **settings: Any) -> Tensor:
    model = _Net64()
    make_trainer(strategy, max_epochs=2, **settings).fit(model, _doubles(6))
    return weights(model)


def _alone_and_together() -> tuple[Tensor, Tensor]:
    return _fit64(_two_stage(push_period=1, double_buffering=False)), _fit64("ddp")


def test_one_rank_that_pushes_every_gradient_is_plain_sgd() -> None:
    ((two_stage, plain),) = run_ranks(_alone_and_together, 1)
    torch.testing.assert_close(two_stage, plain, rtol=0, atol=1e-12)


def _warming() -> tuple[Tensor, Tensor]:
    return _fit64(_two_stage(group_size=2, warmup_steps=1000)), _fit64("ddp")


def test_warm_up_is_synchronous_sgd() -> None:
    for two_stage, plain in run_ranks(_warming, 4):
        torch.testing.assert_close(two_stage, plain, rtol=0, atol=1e-10)


class _Watched(Net):
    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.validated: list[Tensor] = []

    def on_validation_epoch_end(self) -> None:
        buffers = [b.double().reshape(-1) for b in self.buffers()]
        self.validated.append(torch.cat([weights(self).double(), *buffers]))


def _watched(settings: dict[str, Any]) -> Any:
    model = _Watched()
    trainer = make_trainer(
        _two_stage(**settings), max_epochs=3, val_check_interval=4, num_sanity_val_steps=0
    )
    trainer.fit(model, loader(12), loader(2))
    return model.validated, weights(model), trainer.strategy.metrics()


@pytest.mark.parametrize(
    "settings",
    [
        {"group_size": 2},
        pytest.param({"group_size": "world"}, marks=pytest.mark.slow),
        pytest.param({"group_size": 1, "order_locking": False}, marks=pytest.mark.slow),
        pytest.param(
            {"group_size": 2, "double_buffering": False, "push_period": 3}, marks=pytest.mark.slow
        ),
        {"group_size": 2, "hierarchical_lr": False, "push_period": 1, "refresh_period": 2},
    ],
)
def test_validation_sees_one_model_on_all_ranks(settings: dict[str, Any]) -> None:
    ranks = run_ranks(_watched, 4, settings)
    assert len(ranks[0][0]) == 9
    for other in ranks:
        for mine, theirs in zip(ranks[0][0], other[0], strict=True):
            assert torch.equal(mine, theirs)
        assert torch.isfinite(other[1]).all()
        assert torch.equal(other[1], ranks[0][1])
    assert torch.equal(ranks[0][0][-1][: ranks[0][1].numel()], ranks[0][1].double())
    assert not torch.equal(ranks[0][0][0], ranks[0][0][-1])


class _Disturbed(Net):
    def __init__(self, rank: int, step: int, disturbance: str) -> None:
        super().__init__()
        self.where, self.disturbance = (rank, step), disturbance

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.where == (_rank(), self.global_step):
            if self.disturbance == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1.5)
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)


def _disturbed(rank: int, disturbance: str, settings: dict[str, Any]) -> Tensor:
    model = _Disturbed(rank, 5, disturbance)
    fit(_two_stage(group_size=2, push_period=3, **settings), 12, model, max_epochs=2)
    return weights(model)


def _ended_alike(outcomes: list[RankOutcome], ranks: list[int]) -> None:
    for rank in ranks:
        assert outcomes[rank].error is None, outcomes[rank].traceback
        assert torch.equal(outcomes[rank].result, outcomes[ranks[0]].result)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"double_buffering": False}, marks=pytest.mark.slow)]
)
def test_rank_that_sleeps_comes_back(rank: int, settings: dict[str, Any]) -> None:
    outcomes = rank_outcomes(_disturbed, 4, rank, "sleeps", settings)
    _ended_alike(outcomes, [0, 1, 2, 3])


@pytest.mark.parametrize(("rank", "left"), [(1, [0, 2, 3]), (3, [0, 1, 2])])
@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"double_buffering": False}, marks=pytest.mark.slow)]
)
def test_group_goes_on_without_a_rank(rank: int, left: list[int], settings: dict[str, Any]) -> None:
    outcomes = rank_outcomes(_disturbed, 4, rank, "dies", settings)
    _ended_alike(outcomes, left)


def test_groups_go_on_without_another_groups_first_rank() -> None:
    outcomes = rank_outcomes(_disturbed, 4, 2, "dies", {})
    _ended_alike(outcomes, [0, 1])
    assert outcomes[3].error is not None
    assert "rank 2" in outcomes[3].error


def test_nobody_can_go_on_without_the_master() -> None:
    outcomes = rank_outcomes(_disturbed, 4, 0, "dies", {})
    for rank in (1, 2, 3):
        error = outcomes[rank].error
        assert error is not None
        assert "rank 0" in error


def _saved(folder: str) -> Tensor:
    saving = ModelCheckpoint(folder, save_top_k=-1)
    strategy = _two_stage(push_period=1, double_buffering=False)
    return _fit64(strategy, callbacks=[saving], enable_checkpointing=True)


def _resumed(folder: str) -> Tensor:
    model = _Net64()
    trainer = make_trainer(_two_stage(push_period=1, double_buffering=False), max_epochs=2)
    path = next(Path(folder).glob("epoch=0*.ckpt"))
    trainer.fit(model, _doubles(6), ckpt_path=path, weights_only=True)
    return weights(model)


def test_resumed_from_the_masters_parameters_and_optimizer_state(tmp_path: Path) -> None:
    (whole,) = run_ranks(_saved, 1, str(tmp_path))
    (resumed,) = run_ranks(_resumed, 1, str(tmp_path))
    torch.testing.assert_close(resumed, whole, rtol=0, atol=1e-12)
