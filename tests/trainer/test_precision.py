"""Precisions, clipping and BatchNorm under the strategies."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, fit, weights


def _equal(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensor, tensors[0]) for tensor in tensors)


def _precision(precision: Any) -> tuple[Tensor, str]:
    model = Net(batchnorm=True)
    strategy = lh.BMUFGTCStrategy(
        group_size=2, block_size=3, dense_below=9, density=0.2, warmup_steps=0
    )
    fit(strategy, 8, model, precision=precision)
    state = torch.cat([v.double().reshape(-1) for v in model.state_dict().values()])
    return state, str(model.layers[0].weight.dtype)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16-mixed", "torch.float32"),
        ("64-true", "torch.float64"),
        ("bf16-true", "torch.bfloat16"),
    ],
)
def test_ranks_end_with_one_finite_model(precision: str, dtype: str) -> None:
    results = run_ranks(_precision, 4, precision)
    assert _equal([state for state, _ in results])
    assert results[0][0].isfinite().all()
    assert {kind for _, kind in results} == {dtype}


class _Overflows(Net):
    """In one step the loss of one rank is beyond half precision."""

    residual_norm = 0.0

    def on_train_end(self) -> None:
        strategy = self.trainer.strategy
        assert isinstance(strategy, lh.HierarchicalStrategy)
        self.residual_norm = strategy.metrics()["hier/gtc/residual_norm"]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * 1e38 * 1e38 if int(os.environ["RANK"]) == 1 and batch_idx == 3 else loss


def _scaled(group_size: int) -> tuple[list[Tensor], float, float, Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    model = _Overflows()
    strategy = lh.BMUFGTCStrategy(
        group_size=group_size, block_size=4, density=0.2, dense_below=9, warmup_steps=0
    )
    fit(strategy, 9, model, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
    return model.seen, scaler.get_scale(), model.residual_norm, weights(model)


@pytest.mark.parametrize("group_size", [1, 2])
def test_step_that_one_rank_skips_leaves_ranks_in_step(group_size: int) -> None:
    """Alone, rank 1 skips; with a neighbour, both do. The blocks end together all the same."""
    results = run_ranks(_scaled, 4, group_size)
    skipping = [
        rank for rank, (seen, _, _, _) in enumerate(results) if torch.equal(seen[2], seen[3])
    ]
    halved = [rank for rank, (_, scale, _, _) in enumerate(results) if scale == 512.0]
    assert halved == ([1] if group_size == 1 else [0, 1])
    assert _equal([seen[3] for seen, _, _, _ in results])  # the first block's end
    assert _equal([seen[7] for seen, _, _, _ in results])
    assert not _equal([seen[4] for seen, _, _, _ in results])
    assert _equal([final for _, _, _, final in results])
    assert all(residual < float("inf") for _, _, residual, _ in results)
    assert not any(skipping)  # the synchronisation after the skipped step has moved everybody


def _clipped() -> tuple[float, Tensor]:
    norms: list[float] = []

    class Clipped(Net):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            norms.append(
                float(
                    nn.utils.get_total_norm(
                        [p.grad for p in self.parameters() if p.grad is not None]
                    )
                )
            )

        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            super().configure_gradient_clipping(*args, **kwargs)
            norms.append(
                float(
                    nn.utils.get_total_norm(
                        [p.grad for p in self.parameters() if p.grad is not None]
                    )
                )
            )

    model = Clipped()
    fit(
        lh.GTCStrategy(threshold=0.05, dense_below=0, warmup_steps=0),
        6,
        model,
        gradient_clip_val=0.01,
    )
    return max(norms[1::2]), weights(model)


def test_clipping_acts_on_what_the_group_reconstructed() -> None:
    results = run_ranks(_clipped, 2)
    assert all(0.0 < norm <= 0.01 * (1 + 1e-4) for norm, _ in results)
    assert _equal([final for _, final in results])


def _batchnorm() -> tuple[Tensor, int, Tensor]:
    model = Net(batchnorm=True)
    fit(lh.BMUFGTCStrategy(group_size=2, block_size=3, warmup_steps=0, density=0.01), 7, model)
    norm = model.layers[1]
    return norm.running_var.clone(), int(norm.num_batches_tracked), weights(model)


def test_batchnorm_statistics_are_those_of_all_ranks() -> None:
    results = run_ranks(_batchnorm, 4)
    assert _equal([variance for variance, _, _ in results])
    assert (results[0][0] > 0).all()
    assert {tracked for _, tracked, _ in results} == {7}
    assert _equal([final for _, _, final in results])


def _converted() -> list[int]:
    """On the CPU a SyncBatchNorm cannot run, and DDP refuses it: look at what it was made for."""
    handle = "_passing_sync_batchnorm_handle"
    setattr(DistributedDataParallel, handle, lambda self, module: None)
    found: list[int] = []

    class Looks(Net):
        def on_fit_start(self) -> None:
            assert isinstance(self.layers[1], nn.SyncBatchNorm)
            found.extend(torch.distributed.get_process_group_ranks(self.layers[1].process_group))

    model = Looks(batchnorm=True)
    fit(
        lh.BMUFGTCStrategy(group_size=2, warmup_steps=0, density=0.01, block_size=50),
        0,
        model,
        sync_batchnorm=True,
    )
    return found


def test_sync_batchnorm_spans_the_group() -> None:
    assert run_ranks(_converted, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
