"""Settings of model averaging."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.adam_state import SUPPORTED
from lightning_hier.comm.blocks.local_momentum import LocalMomentumSync


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(LocalMomentumSync):
    """Replace the models of the groups by their mean after every block (MA).

    Attributes are those of :class:`BlockSync`, and

    Attributes:
        local_momentum: ``"reset"`` sets the momentum of the local SGD to zero at the start of each
            block (bmuf eq. 8), ``"keep"`` does not change it, ``"average"`` averages it with the
            models.

    Raises:
        ValueError: a value is outside its range.

    """

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Advise BMUFAdam: the mean of normalised steps of Adam is shorter than each of them."""
        if not isinstance(optimizer, SUPPORTED):
            return None
        return (
            f"ModelAveraging with {type(optimizer).__name__} learns less in the same number of "
            "steps than BMUFAdam(...), whose block momentum compensates for the averaging."
        )

    def filter_for(self, num_models: int) -> BlockFilter:
        """No block momentum, for any number of models."""
        return BlockFilter(eta=0.0)
