"""Tests of docs/migration/ddp.md and post_local_sgd.md: code before and after the migration."""

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

PAGE = Page.read("docs/migration/ddp.md")


def _trained(code: list[str]) -> list[list[float]]:
    """Weights after training by each block of the page. Each block has the imports of all."""
    trained = []
    for count in range(1, len(code) + 1):
        imports = [line for text in code for line in text.splitlines() if line.startswith("from ")]
        names = run_code([*imports, code[count - 1]], {"model": Net(), "data": loader(6)})
        trained.append(weights(names["model"]).tolist())
    return trained


def test_one_group_is_ddp_and_two_tiers_train() -> None:
    code = [block.text for block in PAGE.code("tests/docs/test_migration_ddp.py")]
    first, second = run_ranks(_trained, 2, code, ranks_per_node=1)
    before, same, after = first
    assert first == second
    assert before == same
    assert after != before


POST_LOCAL_SGD = Page.read("docs/migration/post_local_sgd.md")
# 4 warm-up steps and whole blocks of 3, because torch does not average an incomplete block.
STEPS = 4 + 3 * 3


class _Batches:
    """Batches of this rank, in an order that no sampler changes."""

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
    before, after = POST_LOCAL_SGD.code("tests/docs/test_migration_ddp.py")
    torchs = run_ranks(_torchs, 4, before.text)
    ours = run_ranks(_ours, 4, after.text)
    assert ours == ours[:1] * 4
    for values in torchs:
        assert values == pytest.approx(ours[0], rel=1e-5, abs=1e-6)
    assert ours[0] != pytest.approx(weights(Net()).tolist(), rel=1e-2)
