"""Outer optimizers, fragments, delays, merges and quantisation, compared with the reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lightning_hier as lh
from lightning_hier import BMUF, ModelAveraging
from lightning_hier.reference import DiLoCo, Method, Training, Worker
from tests.equivalence.cases import (
    Values,
    check_final,
    fit_all,
    fragment_case,
    in_chunks,
    run_reference,
)
from tests.ranks import run_ranks
from tests.trainer import fitting

_SEEN: dict[str, Any] = {"trainer": {"val_check_interval": 1}}

# Stored results of torchft's regression test of DiLoCo (`test_fixtures`, mocked updates 0 to 5):
# two groups, two fragments of one parameter that starts at 1, gradient 2 at every step, SGD with
# rate 1 inside and 2 outside, blocks of 6 steps. By delay and alpha: local values of the first
# fragment after steps 3, 9 and 15, and of the second after 6 and 12. At every other step, each
# falls by 2.
_TORCHFT = {
    (0, 0.0): ((-11.0, -35.0, -59.0), (-23.0, -47.0)),
    (0, 0.5): ((-8.0, -24.5, -40.25), (-17.0, -32.0)),
    (1, 0.5): ((-6.0, -21.5, -35.75), (-15.0, -29.0)),
    (1, 1.0): ((-5.0, -17.0, -29.0), (-11.0, -23.0)),
}

# Each chunk has its own step counts, which an evaluation does not change.
_ADAMW = partial(torch.optim.AdamW, lr=0.02, betas=(0.6, 0.9), weight_decay=0.1)
_LATE: dict[str, Any] = {"overlap": True, "group": 2, "across": "sharded", "batches": 10}
# Largest difference of a final model, relative to the largest value of a tensor. It does not grow
# with the number of blocks, because error feedback sends rounding errors later.
_BOUNDS = {"bfloat16": 1e-3, "int8": 5e-3, "int4": 5e-3 * 127 / 7}

CASES: list[Any] = [
    fragment_case("the paper's defaults", block_size=3, batches=4, epochs=3),
    fragment_case("momentum from the number of groups", outer_momentum="auto", outer_lr=1.0),
    fragment_case("classical momentum", nesterov=False, outer_momentum=0.5),
    fragment_case("a warm-up", group=2, outer_momentum=0.0, outer_lr=1.3, warmup_steps=4),
    fragment_case("AdamW outside", outer_optimizer=_ADAMW, block_size=3, **_SEEN),
    fragment_case("AdamW outside, late", outer_optimizer=_ADAMW, block_size=3, **_SEEN, **_LATE),
    *(
        fragment_case(dtype, BMUF, across_dtype=dtype, momentum=0.5, batches=30, tolerance=bound)
        for dtype, bound in _BOUNDS.items()
    ),
    fragment_case("a block that they don't divide", block_size=5, fragments=3, **_SEEN),
    fragment_case("more fragments than tensors", block_size=7, fragments=7),
    fragment_case("of averages, sharded", ModelAveraging, group=2, fragments=2, across="sharded"),
    fragment_case("half a block, groups, leaders", group=2, overlap=2, across="leader"),
    fragment_case("one group, which is not averaged", group=4, fragments=2, overlap=3),
    fragment_case("two in flight", group=2, fragments=4, overlap=3, across="sharded"),
    fragment_case("fragments and a block", fragments=2, overlap=True, **_SEEN),
    *(fragment_case(f"merge {merge}", overlap=2, merge=merge) for merge in (0.0, 1.0)),
    fragment_case("Streaming", block_size=5, fragments=2, overlap=2, merge=0.5, **_SEEN),
    fragment_case("look-ahead", BMUF, fragments=2, overlap=3, merge=0.3, net="batch_norm", **_SEEN),
    fragment_case("a number without a delay", BMUF, group=2, merge=0.3, net="batch_norm"),
    fragment_case("epochs", fragments=2, overlap=3, accumulate=2, batches=5, epochs=4),
]


@pytest.fixture(scope="module")
def states() -> list[dict[str, Values]]:
    """Final states of every rank."""
    return run_ranks(in_chunks, 4, fit_all, CASES, 7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_final_model_is_that_of_the_reference(case: Any, states: list[dict[str, Values]]) -> None:
    check_final(case, states, run_reference(case).global_model())


class _Falling(pl.LightningModule):
    """Two parameters, whose gradient is 2. `seen` holds their values after every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ParameterList([torch.ones(1), torch.ones(1)])
        self.seen: list[list[float]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return 2.0 * torch.stack(list(self.net)).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append([p.item() for p in self.net])

    def configure_optimizers(self) -> Any:
        return _sgd(self.net.parameters())


_sgd = partial(torch.optim.SGD, lr=1.0)
_OUTER = partial(torch.optim.SGD, lr=2.0)


def _local_models() -> list[Any]:
    """Local models of all steps, and the final model, by delay and alpha."""
    results = []
    for delay, alpha in _TORCHFT:
        own = {"block_size": 6, "fragments": 2, "outer_optimizer": _OUTER}
        sync = lh.DiLoCo(overlap=delay, merge=alpha, **own)
        module, strategy = _Falling(), fitting.HIERARCHICAL(group_size=1, block_sync=sync)
        trainer = fitting.make_trainer(strategy, max_epochs=1, use_distributed_sampler=False)
        trainer.fit(module, DataLoader(range(15)))
        results.append((module.seen, [p.item() for p in module.net]))
    return results


def test_local_models_are_those_that_torchft_has_stored() -> None:
    for results in run_ranks(_local_models, 2):
        for (setting, own), (seen, final) in zip(_TORCHFT.items(), results, strict=True):
            stored: list[list[float]] = []
            for i, at in enumerate(((3, 9, 15), (6, 12))):
                values = [1.0]
                for step in range(1, 16):
                    values.append(own[i][at.index(step)] if step in at else values[-1] - 2.0)
                stored.append(values[1:])
            assert [list(values) for values in zip(*seen, strict=True)] == stored, setting
            assert final == _final_of_reference(*setting), setting


def _final_of_reference(delay: int, alpha: float) -> list[float]:
    nets = [nn.ParameterList([torch.ones(1), torch.ones(1)]) for _ in range(2)]
    outer = partial(DiLoCo, optimizer=_OUTER)
    method = Method(tau=6, fragments=2, delay=delay, merge=alpha, outer=outer)
    training = Training([Worker(net, [_sgd(net.parameters())]) for net in nets], method)
    for _ in range(15):
        for parameter in [p for net in nets for p in net]:
            parameter.grad = torch.full((1,), 2.0)
        training.step()
    return [value.item() for value in training.global_model().values()]
