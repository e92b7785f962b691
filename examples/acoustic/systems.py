"""Systems that the demo and the study of AN4 compare, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch.strategies import Strategy

from lightning_hier import (
    BMUF,
    GTC,
    AllReduce,
    BlockSync,
    GradientSync,
    HierarchicalStrategy,
    ModelAveraging,
)


@dataclass(frozen=True)
class System:
    """A combination of gradient synchronisation, block synchronisation and groups.

    Attributes:
        title: name in tables.
        gradient_sync: function from a density to the synchronisation inside a group. None: training
            on one rank.
        block_sync: function from a block size and the number of groups to the synchronisation
            across groups. None: no block synchronisation.
        grouping: ranks of a group: ``"world"`` for all ranks, ``"rank"`` for each rank by itself,
            ``"run"`` for groups of the ``group_size`` of the run.

    """

    title: str
    gradient_sync: Callable[[float], GradientSync] | None
    block_sync: Callable[[int, int], BlockSync] | None = None
    grouping: Literal["world", "rank", "run"] = "world"

    def ranks(self, available: int) -> int:
        """Return the number of ranks that the system uses."""
        return 1 if self.gradient_sync is None else available

    def strategy(
        self, *, ranks: int, group_size: int, block_size: int, density: float, warmup_steps: int
    ) -> Strategy | str:
        """Return the ``strategy`` argument of the Trainer."""
        if self.gradient_sync is None:
            return "auto"
        size = {"world": ranks, "rank": 1, "run": group_size}[self.grouping]
        return HierarchicalStrategy(
            group_size=size,
            gradient_sync=self.gradient_sync(density),
            block_sync=self.block_sync(block_size, ranks // size) if self.block_sync else None,
            warmup_steps=warmup_steps,
        )


def _exact(density: float) -> GradientSync:
    return AllReduce()


def _compressed(density: float) -> GradientSync:
    return GTC(density=density)


# As in the papers: eta of bmuf eq. 10, the rate of one worker, and momentum that is reset.
def _averaging(block_size: int, groups: int) -> BlockSync:
    return ModelAveraging(block_size=block_size, local_momentum="reset")


def _nesterov(block_size: int, groups: int, **settings: Any) -> BlockSync:
    paper: Any = {"local_momentum": "reset", "local_lr": "keep"}
    return BMUF(block_size=block_size, block_momentum=1 - 1 / groups, **paper, **settings)


def _classical(block_size: int, groups: int) -> BlockSync:
    return _nesterov(block_size, groups, nesterov=False)


def _by_default(block_size: int, groups: int) -> BlockSync:
    return BMUF(block_size=block_size)


# DDP is an all-reduce in one group of all ranks: Lightning's DDP with counted bytes.
STUDIED: dict[str, System] = {
    "one_worker": System("one worker", None),
    "ddp": System("DDP", _exact),
    "model_averaging": System("MA", _exact, _averaging, "rank"),
    "bmuf_cbm": System("BMUF-CBM", _exact, _classical, "rank"),
    "bmuf_nbm": System("BMUF-NBM", _exact, _nesterov, "rank"),
    "gtc": System("GTC", _compressed),
    "bmuf_gtc": System("BMUF_GTC", _compressed, _nesterov, "run"),
}
SYSTEMS: dict[str, System] = {
    **STUDIED,
    "bmuf_groups": System("BMUF, groups", _exact, _by_default, "run"),
}
"""With BMUF by its defaults, which the demo compares with DDP."""
