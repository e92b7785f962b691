"""Which part of the data a group trains on and evaluates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import lightning_hier as lh
from lightning_hier.strategies.tiered import TieredStrategy


@pytest.mark.parametrize(("training", "parts"), [(True, (8, 5)), (False, (2, 1))])
def test_a_group_trains_on_its_part_and_evaluates_all(
    training: bool, parts: tuple[int, int]
) -> None:
    """Rank 1 of the two ranks of group 2 of 4."""
    settings = lh.TorchFT("http://lighthouse:29510", group=2, groups=4)
    strategy = lh.DiLoCoStrategy(membership=settings)
    in_job = mock.PropertyMock(return_value={"num_replicas": 2, "rank": 1})
    module: Any = SimpleNamespace(trainer=SimpleNamespace(training=training))
    with (
        mock.patch.object(TieredStrategy, "distributed_sampler_kwargs", in_job),
        mock.patch.object(TieredStrategy, "lightning_module", module, create=True),
    ):
        found = strategy.distributed_sampler_kwargs
    assert (found["num_replicas"], found["rank"]) == parts
