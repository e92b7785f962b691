"""Systems that the demo and the studies compare, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
        block_sync: function from a block size to the synchronisation across groups. None: no block
            synchronisation.
        grouping: ranks of a group: ``"world"`` for all ranks, ``"rank"`` for each rank by itself,
            ``"run"`` for groups of the ``group_size`` of the run.

    """

    title: str
    gradient_sync: Callable[[float], GradientSync] | None
    block_sync: Callable[[int], BlockSync] | None = None
    grouping: Literal["world", "rank", "run"] = "world"

    def ranks(self, available: int) -> int:
        """Return the number of ranks that the system uses."""
        return 1 if self.gradient_sync is None else available

    def strategy(
        self, *, group_size: int, block_size: int, density: float, warmup_steps: int
    ) -> Strategy | str:
        """Return the ``strategy`` argument of the Trainer."""
        if self.gradient_sync is None:
            return "auto"
        sizes: dict[str, int | Literal["world"]] = {"world": "world", "rank": 1, "run": group_size}
        return HierarchicalStrategy(
            group_size=sizes[self.grouping],
            gradient_sync=self.gradient_sync(density),
            block_sync=self.block_sync(block_size) if self.block_sync else None,
            warmup_steps=warmup_steps,
        )


def _exact(density: float) -> GradientSync:
    return AllReduce()


def _compressed(density: float) -> GradientSync:
    return GTC(density=density)


def _averaging(block_size: int) -> BlockSync:
    return ModelAveraging(block_size=block_size)


def _classical(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size, nesterov=False)


def _nesterov(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size)


def _nesterov_with_momentum(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size, local_momentum="average")


def _averaging_overlapped(block_size: int) -> BlockSync:
    return ModelAveraging(block_size=block_size, overlap=True)


def _nesterov_overlapped(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size, overlap=True)


def _nesterov_int8(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size, across_dtype="int8")


def _nesterov_int8_overlapped(block_size: int) -> BlockSync:
    return BMUF(block_size=block_size, across_dtype="int8", overlap=True)


# DDP is an all-reduce in one group of all ranks: Lightning's DDP with counted bytes.
SYSTEMS: dict[str, System] = {
    "one_worker": System("one worker", None),
    "ddp": System("DDP", _exact),
    "model_averaging": System("MA", _exact, _averaging, "rank"),
    "bmuf_cbm": System("BMUF-CBM", _exact, _classical, "rank"),
    "bmuf_nbm": System("BMUF-NBM", _exact, _nesterov, "rank"),
    "gtc": System("GTC", _compressed),
    "bmuf_gtc": System("BMUF_GTC", _compressed, _nesterov, "run"),
}

# Variants with averaged momentum of SGD, quantised models, or overlap with the next block.
VARIANTS: dict[str, System] = {
    "bmuf_groups": System("BMUF, groups", _exact, _nesterov_with_momentum, "run"),
    "model_averaging_overlap": System("MA, overlap", _exact, _averaging_overlapped, "rank"),
    "bmuf_nbm_overlap": System("BMUF-NBM, overlap", _exact, _nesterov_overlapped, "rank"),
    "bmuf_nbm_int8": System("BMUF-NBM, int8", _exact, _nesterov_int8, "rank"),
    "bmuf_nbm_int8_overlap": System(
        "BMUF-NBM, int8, overlap", _exact, _nesterov_int8_overlapped, "rank"
    ),
}

ALL: dict[str, System] = {**SYSTEMS, **VARIANTS}
