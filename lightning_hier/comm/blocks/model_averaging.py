"""Settings of model averaging, and of the local optimizer's momentum at the ends of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch.nn import Parameter
from torch.optim import Optimizer

from lightning_hier.algorithms.arguments import check_choice
from lightning_hier.algorithms.block_momentum import BlockMomentum
from lightning_hier.comm.blocks.adam_state import SUPPORTED
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.local_state import AveragedMomentum, LocalState, ResetMomentum
from lightning_hier.comm.blocks.outer_step import EtaOf, OuterOptimizer
from lightning_hier.comm.channel import Channel

LocalMomentum = Literal["reset", "keep", "average"]


@dataclass(frozen=True, kw_only=True)
class LocalMomentumSync(BlockSync):
    """Base class of the settings with ``local_momentum``.

    Attributes:
        local_momentum: ``"reset"`` sets the momentum of the local SGD to zero at the start of each
            block (bmuf eq. 8), ``"keep"`` does not change it, ``"average"`` averages it with the
            models.

    """

    local_momentum: LocalMomentum = "reset"

    @property
    def averages_state(self) -> bool:
        """Whether momentum is averaged."""
        return self.local_momentum == "average"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_choice("local_momentum", self.local_momentum, get_args(LocalMomentum))
        if self.overlap and self.local_momentum == "average":
            raise ValueError(
                f"overlap={self.overlap} can't be combined with local_momentum='average': a mean "
                "that is late does not match the momentum of the local model. Pass "
                "local_momentum='reset' or 'keep'."
            )

    def objection(self, optimizer: Optimizer) -> str | None:
        """Averaging needs the momentum of SGD or RMSprop."""
        # A setting of SGD, RMSprop and Muon, which keep it as ``momentum_buffer``.
        if self.local_momentum != "average" or "momentum" in optimizer.defaults:
            return None
        return (
            "local_momentum='average' averages the momentum of SGD, RMSprop or Muon, got "
            f"{type(optimizer).__name__}: use BMUFAdam(...) for Adam, AdamW, NAdam and RAdam, and "
            "'reset' or 'keep' for other optimizers, whose state is then not changed"
        )

    def local_state(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        across: Channel,
        num_models: int,
        eta_of: EtaOf | None,
    ) -> LocalState:
        """The treatment that ``local_momentum`` selects."""
        if self.local_momentum == "average":
            return AveragedMomentum(optimizer, parameters)
        return (
            ResetMomentum(optimizer, parameters) if self.local_momentum == "reset" else LocalState()
        )


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

    def outer_of(self, num_models: int) -> OuterOptimizer:
        """Block momentum of 0, for any number of models."""
        return BlockMomentum
