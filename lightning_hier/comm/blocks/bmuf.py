"""Settings of model averaging, and of block synchronisation with block momentum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import Self, override

from lightning_hier.algorithms.arguments import (
    check_choice,
    check_flag,
    check_positive,
    is_number,
)
from lightning_hier.algorithms.automatic import Auto, momentum_of_run
from lightning_hier.algorithms.block_momentum import (
    BlockMomentum,
    UpdateFrom,
    auto_block_momentum,
)
from lightning_hier.algorithms.weighting import weighted_block_momentum
from lightning_hier.comm.blocks.adam_state import SUPPORTED
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.local_state import (
    AveragedMomentum,
    LocalState,
    ResetMomentum,
    stepping_with,
    steps_by_rate,
)
from lightning_hier.comm.blocks.outer_step import EtaOf, OuterOptimizer

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.block_context import BlockContext

# Stability of classical momentum with a delay of a block: docs/algorithms.md, "What a delay does".
_LARGEST_LATE_ETA = 0.71

LocalMomentum = Literal["auto", "reset", "keep", "average"]

LocalLR = float | Auto | Literal["keep"]


@dataclass(frozen=True, kw_only=True)
class LocalOptimizerSync(BlockSync):
    """Base class of :class:`ModelAveraging` and :class:`BMUF`, which describe its attributes."""

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


@dataclass(frozen=True, kw_only=True)
class BlockMomentumSync(BlockSync):
    """Base class of the settings with block momentum, whose attributes :class:`BMUF` describes."""

    # ``least_blocks`` of momentum_of_run.
    momentum_blocks: ClassVar[int] = 20

    block_momentum: float | Literal["auto"] = "auto"
    block_lr: float = 1.0
    c: float = 1.0
    nesterov: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.block_momentum != "auto" and not (
            is_number(self.block_momentum) and 0.0 <= self.block_momentum < 1.0
        ):
            raise ValueError(
                f"block_momentum must be 'auto' or lie in [0, 1), got {self.block_momentum!r}"
            )
        check_positive("block_lr", self.block_lr)
        check_flag("nesterov", self.nesterov)
        if not (is_number(self.c) and self.c >= 1.0):
            raise ValueError(f"c must be a finite number of at least 1, got {self.c!r}")
        if self.weighting == "samples":  # membership, the other reason, is not known here
            self.check_eta_of()

    @override
    def check_eta_of(self) -> None:
        """See :class:`BlockSync`."""
        if self.block_momentum == "auto" and self.block_lr > self.c:
            raise ValueError(
                f"block_lr={self.block_lr:g} with block_momentum='auto' and weighting='samples' "
                f"or membership must be at most c={self.c:g}: the effective number of groups may "
                "be close to 1, and block momentum to 1 - block_lr / c, below 0. Lower block_lr, "
                "or set block_momentum"
            )

    @override
    def eta_of(self, num_models: int) -> EtaOf | None:
        """See :class:`BlockSync`."""
        if self.block_momentum != "auto" or num_models == 1:
            return None  # auto_block_momentum gives a single model none
        return partial(weighted_block_momentum, block_lr=self.block_lr, c=self.c)

    @override
    def automatic(self, *, varies: bool = False) -> list[str]:
        """See :class:`BlockSync`."""
        depends = self.block_momentum == "auto" and not varies
        return super().automatic(varies=varies) + ["block_momentum"] * depends

    @override
    def resolved(self, run_steps: float, num_models: int, *, varies: bool = False) -> Self:
        """See :class:`BlockSync`."""
        known = super().resolved(run_steps, num_models, varies=varies)
        if "block_momentum" not in self.automatic(varies=varies):
            return known
        blocks = run_steps / known.steps
        eta = momentum_of_run(self.eta(num_models), self.block_lr, blocks, self.momentum_blocks)
        return replace(known, block_momentum=eta)

    def outer_of(self, num_models: int) -> Callable[..., Optimizer]:
        """Block momentum, with eta as set, or from the number of averaged models."""
        return partial(
            BlockMomentum,
            block_momentum=self.eta(num_models),
            block_lr=self.block_lr,
            nesterov=self.nesterov,
        )

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Advise Nesterov's momentum for means that are a whole block late."""
        eta = self.eta(num_models)
        if self.nesterov or not self.delays_block or eta <= _LARGEST_LATE_ETA:
            return None
        return (
            f"nesterov=False with overlap={self.overlap}, a whole block, diverges for "
            f"block_momentum above {_LARGEST_LATE_ETA}, which is {eta:.3g} here. Leave "
            "nesterov=True, or pass a shorter overlap."
        )

    def eta(self, num_models: int) -> float:
        """Block momentum for this number of averaged models."""
        if self.block_momentum == "auto":
            return auto_block_momentum(num_models, block_lr=self.block_lr, c=self.c)
        return self.block_momentum


@dataclass(frozen=True, kw_only=True)
class BMUF(BlockMomentumSync, LocalOptimizerSync):
    """Blockwise model-update filtering over the groups (bmuf 2.1.3).

    The equations are at :class:`~lightning_hier.algorithms.block_momentum.BlockMomentum`.

    Attributes are those of :class:`BlockSync`, and

    Attributes:
        block_momentum: eta in [0, 1), or ``"auto"``: from the number of averaged models,
            ``block_lr`` and ``c`` (bmuf eq. 10), and at most ``1 - 1000 / B`` in a run of B
            blocks, so that runs of up to 1,000 blocks are model averaging. With
            ``weighting="samples"`` or membership, it follows the effective number of models at
            every mean, and not B.
        block_lr: zeta, above 0.
        c: C of bmuf eq. 10, at least 1; used by ``block_momentum="auto"`` alone.
        nesterov: Nesterov block momentum (NBM); False is classical (CBM).
        local_momentum: as in :class:`ModelAveraging`.
        local_lr: factor on the learning rate of the local optimizer while blocks run and there are
            several groups: ``"auto"``, a number above 0, or ``"keep"`` (1). Each mini-batch counts
            zeta / (1 - eta) times in the global model. ``"auto"`` is the inverse, so that DDP's
            learning rate is the one to pass; 1 for optimizers that normalise their steps, as Adam
            does, because the mean of such steps is shorter than each of them. With
            ``weighting="samples"`` or membership, eta is that for all groups. Between steps,
            ``param_groups`` contain the user's value.
        update_from: ``"global"`` as in bmuf; ``"start"`` reproduces toolkits that add the update to
            the look-ahead, see :class:`~lightning_hier.algorithms.block_momentum.BlockMomentum`.

    Raises:
        ValueError: a value is outside its range.

    """

    # In docs/reports/defaults.md, SGD learns most by averaging alone, in runs of 75 and 250 blocks.
    momentum_blocks: ClassVar[int] = 1000

    update_from: UpdateFrom = "global"

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_choice("update_from", self.update_from, get_args(UpdateFrom))

    @override
    def check_eta_of(self) -> None:
        """See :class:`BlockSync`."""
        super().check_eta_of()
        # A block starts from the look-ahead with the last eta, but the update would be added to
        # the look-ahead with the new one.
        if self.block_momentum == "auto" and self.update_from == "start":
            raise ValueError(
                "update_from='start' can't be combined with block_momentum='auto' and "
                "weighting='samples' or membership, where every block has another momentum: set "
                "block_momentum"
            )

    @override
    def lr_factor(self, optimizer: Optimizer, num_models: int) -> float:
        """The number for ``local_lr``."""
        if self.local_lr != "auto" or not steps_by_rate(optimizer):
            return super().lr_factor(optimizer, num_models)
        eta = self.eta(num_models)
        literal = self.nesterov and self.update_from == "start"
        return (1.0 - eta) / (self.block_lr * (1.0 + eta if literal else 1.0))

    @override
    def chosen(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Message about model averaging, or another learning rate, or None."""
        if num_models == 1:
            return None
        if self.eta(num_models) == 0.0 and self.block_lr == 1.0:
            return "Without block momentum, BMUF is model averaging."
        factor = self.lr_factor(optimizer, num_models)
        if self.local_lr != "auto" or factor == 1.0:
            return None
        return (
            f"local_lr='auto': {type(optimizer).__name__} steps with {factor:.3g} of its learning "
            "rate while blocks run ('keep' disables this)"
        )

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """As of block momentum, and advise BMUF-Adam for optimizers with moments."""
        late = super().advice(optimizer, num_models)
        if late is not None or not isinstance(optimizer, SUPPORTED):
            return late
        if self.eta(num_models) == 0.0:
            return advice_against_averaging(self, optimizer)
        return (
            f"BMUF does not synchronise the moments of {type(optimizer).__name__}, so they do not "
            "match the model after block momentum. Use BMUFAdam(...), which synchronises them, if "
            "all optimizers have such moments."
        )

    def outer_of(self, num_models: int) -> Callable[..., Optimizer]:
        """Block momentum, with eta as set, or from the number of averaged models."""
        return partial(super().outer_of(num_models), update_from=self.update_from)
