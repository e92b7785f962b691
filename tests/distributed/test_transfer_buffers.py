"""Transfer buffers of an accelerator are freed between synchronisations, emulated on the CPU."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

import lightning_hier as lh
from lightning_hier.comm.blocks import shard
from lightning_hier.comm.blocks.shard import Shard
from tests.trainer.fitting import BMUF_GTC, Fitted, Watched, fits_on_ranks, fitted

_ADAM = partial(lh.BMUFAdamStrategy, block_size=4, warmup_steps=2, overlap=2)
_DILOCO = partial(
    lh.DiLoCoStrategy, block_size=4, fragments=2, overlap=1, across_dtype="int8", warmup_steps=0
)
CASES: dict[str, tuple[Any, str]] = {
    "shards of a group": (partial(BMUF_GTC, across="sharded"), "SGD"),
    "moments in flight": (_ADAM, "AdamW"),
    "fragments in flight": (_DILOCO, "AdamW"),
}


class _Counting(Watched):
    """Records the number of allocated transfer buffers after every step."""

    def __init__(self, optimizer: str) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.allocated: list[int] = []

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(outputs, batch, batch_idx)
        shards = [own for own in gc.get_objects() if type(own) is Shard]
        self.allocated.append(sum(own._allocated is not None for own in shards))

    def on_train_end(self) -> None:
        super().on_train_end()
        self.metrics["allocated"] = max(self.allocated)


def _fit(strategy: Any, optimizer: str, *, freed: bool) -> Fitted:
    gc.collect()  # shards of an earlier fit
    with mock.patch.object(shard, "_KEPT_ON", "none" if freed else "cpu"):
        model = partial(_Counting, optimizer)
        return fitted(strategy, model, 11, validate=1, val_check_interval=5)


@pytest.fixture(scope="module")
def fits() -> list[list[Fitted]]:
    both = [partial(_fit, *own, freed=freed) for own in CASES.values() for freed in (False, True)]
    return fits_on_ranks(4, *both)


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_without_a_buffer_between_synchronisations(
    case: str, fits: list[list[Fitted]]
) -> None:
    number = 2 * [*CASES].index(case)
    for kept, freed in zip(fits[number], fits[number + 1], strict=True):
        assert kept.metrics["allocated"] > 0 and freed.metrics["allocated"] == 0
        assert torch.equal(torch.stack(kept.seen), torch.stack(freed.seen))
        assert torch.equal(torch.stack(kept.notes), torch.stack(freed.notes))
        for name, value in kept.state.items():
            assert torch.equal(value, freed.state[name]), name
