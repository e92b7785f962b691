"""What the parts of a block's model have in common: how they meet others, and what they find."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.across import AcrossRoute
from lightning_hier.comm.blocks.averaging import AcrossDtype
from lightning_hier.comm.blocks.local_models import LocalModels
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.shard_placement import ShardPlacement


@dataclass
class Norms:
    """Sums of squares of what a synchronisation has found.

    Attributes:
        models: of the averaged models, whole, a mean over the groups.
        mean: of their mean, of this rank's share.
        update: of Delta, likewise.

    """

    models: float
    mean: float = 0.0
    update: float = 0.0

    def add(self, mean: float, update: float) -> None:
        """Count those of a stretch of the model."""
        self.mean += mean
        self.update += update


@dataclass(frozen=True)
class BucketSettings:
    """What all parts of a block have in common.

    Attributes:
        local_state: of the local optimizer.
        block_filter: the arithmetic.
        placement: who carries what in a group.
        route: who exchanges with whom.
        across_dtype: in what form.
        models: local models of this rank.
        block_size: steps of a block.

    """

    local_state: LocalState
    block_filter: BlockFilter
    placement: ShardPlacement
    route: AcrossRoute
    across_dtype: AcrossDtype
    models: LocalModels
    block_size: int
