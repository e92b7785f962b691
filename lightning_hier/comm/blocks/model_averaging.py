"""Settings of model averaging, and of the local optimizer's momentum and learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hier.algorithms.arguments import check_choice, is_number
from lightning_hier.algorithms.automatic import Auto
from lightning_hier.algorithms.block_momentum import BlockMomentum
from lightning_hier.comm.blocks.adam_state import SUPPORTED
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.local_state import (
    AveragedMomentum,
    LocalState,
    ResetMomentum,
    stepping_with,
)
from lightning_hier.comm.blocks.outer_step import OuterOptimizer

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.block_context import BlockContext

LocalMomentum = Literal["auto", "reset", "keep", "average"]

LocalLR = float | Auto | Literal["keep"]


@dataclass(frozen=True, kw_only=True)
class LocalOptimizerSync(BlockSync):
    """Base class of the settings with ``local_momentum`` and ``local_lr``.

    Attributes:
        local_momentum: ``"reset"`` sets the momentum of the local SGD to zero at the start of each
            block (bmuf eq. 8), ``"keep"`` and ``"auto"`` do not change it, ``"average"`` averages
            it with the models.
        local_lr: factor on the learning rate of the local optimizer while blocks run and there are
            several groups: ``"auto"``, so that DDP's learning rate is the one to pass, a number
            above 0, or ``"keep"`` (1). Between steps, ``param_groups`` contain the user's value.

    """

    local_momentum: LocalMomentum = "auto"
    local_lr: LocalLR = "auto"

    @property
    def averages_state(self) -> bool:
        """Whether momentum is averaged."""
        return self.local_momentum == "average"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_choice("local_momentum", self.local_momentum, get_args(LocalMomentum))
        lr: Any = self.local_lr
        if lr not in ("auto", "keep") and not (is_number(lr) and lr > 0.0):
            raise ValueError(f"local_lr must be 'auto', 'keep' or a number above 0, got {lr!r}")
        if self.overlap and self.local_momentum == "average":
            raise ValueError(
                f"overlap={self.overlap} can't be combined with local_momentum='average': a mean "
                "that is late does not match the momentum of the local model. Pass "
                "local_momentum='reset' or 'keep'."
            )

    def lr_factor(self, optimizer: Optimizer, num_models: int) -> float:
        """The number for ``local_lr``, with so many averaged models."""
        return self.local_lr if isinstance(self.local_lr, (int, float)) else 1.0

    @override
    def stepping(
        self, optimizer: Optimizer, num_models: int
    ) -> Callable[[], AbstractContextManager[None]]:
        """Context that multiplies learning rates by ``local_lr``."""
        factor = self.lr_factor(optimizer, num_models)
        if num_models == 1 or factor == 1.0:
            return nullcontext
        return partial(stepping_with, optimizer, lambda group: {"lr": factor * group["lr"]})

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

    def local_state(self, context: BlockContext, parameters: Sequence[Parameter]) -> LocalState:
        """The treatment that ``local_momentum`` selects."""
        if self.local_momentum == "average":
            return AveragedMomentum(context.optimizer, parameters)
        resets = self.local_momentum == "reset"
        return ResetMomentum(context.optimizer, parameters) if resets else LocalState()


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(LocalOptimizerSync):
    """Replace the models of the groups by their mean after every block (MA).

    Attributes are those of :class:`BlockSync`, and

    Attributes:
        local_momentum: ``"reset"`` sets the momentum of the local SGD to zero at the start of each
            block (bmuf eq. 8), ``"keep"`` and ``"auto"`` do not change it, ``"average"`` averages
            it with the models.
        local_lr: factor on the learning rate of the local optimizer while blocks run: a number
            above 0. ``"auto"`` and ``"keep"`` are 1, because there is no block momentum.

    Raises:
        ValueError: a value is outside its range.

    """

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Advise BMUFAdam: the mean of normalised steps of Adam is shorter than each of them."""
        if not isinstance(optimizer, SUPPORTED):
            return None
        return advice_against_averaging(self, optimizer)

    def outer_of(self, num_models: int) -> OuterOptimizer:
        """Block momentum of 0, for any number of models."""
        return BlockMomentum


def advice_against_averaging(sync: BlockSync, optimizer: Optimizer) -> str:
    """Advise BMUFAdam for an optimizer that it supports."""
    return (
        f"{type(sync).__name__} without block momentum learns less with {type(optimizer).__name__} "
        "in the same number of steps than BMUFAdam(...), whose block momentum compensates for the "
        "averaging. Its strategy is 'bmuf_adam', and with compression inside groups "
        "HierarchicalStrategy(gradient_sync=GTC(), block_sync=BMUFAdam())."
    )
