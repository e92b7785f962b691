"""A run whose groups count by samples resumes bit for bit, in the middle of a step as well."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lightning_hier as lh
from tests.resume.runs import DropoutNet, check_exact

SETTINGS: dict[str, Any] = {"block_size": 4, "weighting": "samples"}
SYNCS = {
    "DiLoCo, one of two fragments in flight": lh.DiLoCo(
        **SETTINGS, outer_momentum="auto", fragments=2, overlap=2
    ),
    "BMUF in flight": lh.BMUF(**SETTINGS, overlap=3),
    "BMUF": lh.BMUF(**SETTINGS),
}


class _Counting(DropoutNet):
    """Each rank has batches of another number of samples, which changes from batch to batch."""

    def batch_samples(self, batch: Any) -> int:
        rank, number = self.global_rank, self.trainer.fit_loop.batch_idx
        return 1 + 4 * rank + number % (2 + rank)


@pytest.mark.parametrize("name", SYNCS)
def test_in_the_middle_of_a_block(name: str, tmp_path: Path) -> None:
    make = partial(lh.HierarchicalStrategy, group_size=1, block_sync=SYNCS[name], warmup_steps=0)
    check_exact(2, make, tmp_path, make_model=_Counting)


class _Divided:
    """Makes a strategy whose groups divide the model among their ranks, and one that does not."""

    def __init__(self) -> None:
        self._left: list[Any] = ["sharded", "leader"]

    def __call__(self) -> Any:
        sync = lh.BMUF(**{**SETTINGS, "block_size": 2}, across=self._left.pop(0))
        return lh.HierarchicalStrategy(group_size=2, block_sync=sync, warmup_steps=0)


def test_in_the_middle_of_a_step_of_groups(tmp_path: Path) -> None:
    """A step and a half have been counted, and the resumed run divides the model otherwise."""
    settings = {"make_model": _Counting, "accumulate_grad_batches": 3}
    check_exact(4, _Divided(), tmp_path, number=9, **settings)
