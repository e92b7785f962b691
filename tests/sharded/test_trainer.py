"""A divided module with settings of the Trainer, and the errors of unsuitable modules.

The settings are accumulation, clipping and manual optimization.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import lightning_hier as lh
from tests.ranks import run_ranks
from tests.sharded.nets import Divided, batches, gathered, in_turn, trained
from tests.trainer.fitting import make_trainer
from tests.trainer.mistakes import Mistakes, errors_by_rank

_DILOCO = partial(lh.DiLoCo, block_size=3)


class Rich(Divided):
    """A module with BatchNorm, a tied weight, a frozen layer, and a parameter of one element."""

    def __init__(self) -> None:
        super().__init__("AdamW", lr=0.02)
        self.norm = nn.BatchNorm1d(6).double()
        self.again = nn.Linear(6, 6, bias=False).double()
        self.back = nn.Linear(6, 6).double()
        self.back.weight = self.again.weight
        self.frozen = nn.Linear(6, 6).double().requires_grad_(False)

    def configure_model(self) -> None:
        mesh = self.device_mesh
        if mesh is not None and not isinstance(self.second.weight, DTensor):
            fully_shard(self.first, mesh=mesh["data_parallel"])
            fully_shard(self, mesh=mesh["data_parallel"])

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.norm(torch.tanh(self.first(batch)))
        hidden = self.back(torch.tanh(self.again(hidden))) + self.frozen(hidden)
        result: Tensor = self.second(hidden) * self.scale
        return result


def _strategy(kind: str, **settings: Any) -> Any:
    sync, size = settings.pop("block_sync", _DILOCO)(), settings.pop("group_size", 2)
    kinds = {
        "whole": partial(lh.HierarchicalStrategy, warmup_steps=0),
        "divided": lh.HierarchicalModelParallelStrategy,
    }
    return kinds[kind](group_size=size, block_sync=sync, **settings)


def _rich(kind: str) -> list[Tensor]:
    """Parameters, buffers and norms."""
    module = Rich()
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.3}
    trainer = make_trainer(_strategy(kind), **settings)
    trainer.fit(module, batches(4, 14))
    norms = torch.tensor([module.norms[name] for name in sorted(module.norms)], dtype=torch.float64)
    return [gathered(module), *(buffer.double() for buffer in module.buffers()), norms]


class ByHand(Divided):
    """A module with manual optimization and a step at every second batch."""

    def __init__(self) -> None:
        super().__init__("AdamW", lr=0.02)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx) / 2)
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()


def _by_hand(kind: str) -> list[Tensor]:
    return [trained(partial(_strategy, kind, warmup_steps=3), 12, ByHand)["weights"]]


def test_unusual_tensors_and_manual_optimization() -> None:
    """With accumulation and clipping, or by hand and with a warm-up."""
    jobs = [partial(fit, kind) for fit in (_rich, _by_hand) for kind in ("whole", "divided")]
    for rich, divided, by_hand, divided_by_hand in run_ranks(in_turn, 4, jobs):
        for one, other in zip(rich + by_hand, divided + divided_by_hand, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def _crossing() -> list[int]:
    strategy = _strategy("divided", block_sync=partial(lh.DiLoCo, block_size=4))
    sent: list[int] = []

    class Counts(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            sent.append(strategy.traffic.total("across").payload_bytes)

    make_trainer(strategy, callbacks=[Counts()]).fit(Divided("AdamW"), batches(4, 8))
    return sent


def test_nothing_is_sent_across_groups_within_a_block() -> None:
    for sent in run_ranks(_crossing, 4):
        per_step = [after - before for before, after in zip(sent, sent[1:], strict=False)]
        assert [step + 2 for step, own in enumerate(per_step) if own] == [4, 8]


def _refused(strategy: Any, model: Any, **settings: Any) -> None:
    make_trainer(strategy(), **settings).fit(model(), batches(4, 2))


class Undivided(Divided):
    """A module that does not divide itself."""

    def configure_model(self) -> None:
        """Do nothing."""


class PartlyDivided(Divided):
    """A module in which FSDP2 divides one of two layers, and would only average its gradients."""

    def configure_model(self) -> None:
        mesh: Any = self.device_mesh
        fully_shard(self.first, mesh=mesh["data_parallel"])


MISTAKES: Mistakes = {
    "undivided": (
        partial(_refused, partial(_strategy, "divided"), Undivided),
        r"configure_model\(\) must divide the module",
    ),
    "partly divided": (
        partial(_refused, partial(_strategy, "divided"), PartlyDivided),
        "3 trainable parameters are outside of fully_shard, among them 'scale'",
    ),
    "optimizer": (
        partial(
            _refused,
            partial(_strategy, "divided", block_sync=partial(lh.BMUFAdam, block_size=2)),
            Divided,
        ),
        "BMUFAdam needs an optimizer with Adam's moments",
    ),
    "tensor_parallel_size": (
        partial(_refused, partial(_strategy, "divided", tensor_parallel_size=4), Divided),
        "tensor_parallel_size must divide group_size",
    ),
    "group_size": (
        partial(_refused, partial(_strategy, "divided", group_size=3), Divided),
        "sizes that do: 1, 2, 4",
    ),
    "sync_batchnorm": (
        partial(_refused, partial(_strategy, "divided"), Divided, sync_batchnorm=True),
        "sync_batchnorm=True has no effect on a divided module",
    ),
}


def test_one_clear_error_on_every_rank() -> None:
    for errors in errors_by_rank(__name__):
        for name, error in errors.items():
            assert re.search(MISTAKES[name][1], error), error
