"""docs/migration/post_local_sgd.md: torch's loop and ours end with the same model."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import Tensor

from tests.docs.pages import Page
from tests.docs.running import run_code
from tests.ranks import run_ranks
from tests.trainer.fitting import Net, loader, weights

PAGE = Page.read("docs/migration/post_local_sgd.md")
# 4 steps of warm-up and whole blocks of 3: torch leaves the rest of a block as it is on each rank.
STEPS = 4 + 3 * 3


class _Batches:
    """Those of this rank, in an order that no sampler changes."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        rows = loader(STEPS).dataset[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]
        return zip(*(tensor.split(2) for tensor in rows), strict=True)

    def __len__(self) -> int:
        return STEPS


def _torchs(code: str) -> list[float]:
    dist.init_process_group("gloo")
    return _ours(code)


def _ours(code: str) -> list[float]:
    model = Net()
    run_code([code], {"model": model, "data": _Batches()})
    return weights(model).tolist()


def test_before_and_after_are_the_same() -> None:
    before, after = PAGE.code("tests/docs/test_migration_post_local_sgd.py")
    torchs = run_ranks(_torchs, 4, before.text)
    ours = run_ranks(_ours, 4, after.text)
    assert ours == ours[:1] * 4
    for found in torchs:
        assert found == pytest.approx(ours[0], rel=1e-5, abs=1e-6)
    assert ours[0] != pytest.approx(weights(Net()).tolist(), rel=1e-2)
