"""Settings of block synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import Self

from lightning_hier.algorithms.arguments import (
    NamedArguments,
    check_choice,
    check_flag,
    check_whole_or_auto,
)
from lightning_hier.algorithms.automatic import Auto, auto_block_size
from lightning_hier.algorithms.block_momentum import BlockFilter
from lightning_hier.comm.blocks.adam_state import SUPPORTED
from lightning_hier.comm.blocks.exchange import AcrossDtype
from lightning_hier.comm.blocks.local_state import AveragedMomentum, LocalState, ResetMomentum
from lightning_hier.comm.blocks.outer_step import BlockMomentumStep, OuterStep
from lightning_hier.comm.blocks.shard_placement import Across
from lightning_hier.comm.channel import Channel

LocalMomentum = Literal["reset", "keep", "average"]


class BlockSync(NamedArguments):
    """Base class of the settings for ``HierarchicalStrategy(block_sync=...)``.

    Attributes:
        block_size: tau, steps between two synchronisations of models, or ``"auto"``.
        across: ranks that exchange the model between groups.
        across_dtype: dtype of model updates between hosts.
        overlap: whether the exchange overlaps with training of the next block.

    """

    block_size: int | Auto
    across: Across
    across_dtype: AcrossDtype
    overlap: bool = False

    @property
    def steps(self) -> int:
        """tau, as a number.

        Raises:
            RuntimeError: ``block_size`` is still ``"auto"``.

        """
        if self.block_size == "auto":
            raise RuntimeError(
                "block_size='auto' has no number before the run starts: call resolved(...)"
            )
        return self.block_size

    def resolved(self, run_steps: float, num_models: int) -> Self:
        """Return the same settings with a number instead of ``block_size="auto"``.

        Args:
            run_steps: steps of one optimizer in the run, or infinity if unknown.
            num_models: averaged models.

        """
        if self.block_size != "auto":
            return self
        settings: Any = self  # the base class has no fields
        made: Self = replace(settings, block_size=self.auto_block_size(run_steps, num_models))
        return made

    def auto_block_size(self, run_steps: float, num_models: int) -> int:
        """The number that stands for ``block_size="auto"``; arguments as of :meth:`resolved`."""
        return auto_block_size(run_steps)

    def stepping(
        self, optimizer: Optimizer, num_models: int
    ) -> Callable[[], AbstractContextManager[None]]:
        """Function that creates the context of each step of ``optimizer`` while blocks run."""
        return nullcontext

    @property
    def averages_state(self) -> bool:
        """Whether state of the local optimizer is averaged with the model."""
        return False

    def filter_for(self, num_models: int) -> BlockFilter:
        """Equations for ``num_models`` averaged models.

        Raises:
            ValueError: the settings do not support this number of models.

        """
        raise NotImplementedError

    def check_models(self, num_models: int) -> None:
        """Check that the settings suit ``num_models`` averaged models.

        Raises:
            ValueError: they do not.

        """
        self.filter_for(num_models)

    def outer_step(self, global_model: Tensor, *, num_models: int, from_updates: bool) -> OuterStep:
        """Outer step of a fragment. Settings with another outer optimizer override it.

        Args:
            global_model: as in :class:`~lightning_hier.comm.blocks.outer_step.OuterStep`.
            num_models: averaged models.
            from_updates: as in :class:`~lightning_hier.comm.blocks.outer_step.OuterStep`.

        """
        block_filter = self.filter_for(num_models)
        return BlockMomentumStep(block_filter, global_model, from_updates=from_updates)

    def local_state(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        across: Channel,
        num_models: int,
    ) -> LocalState:
        """Treatment of the state of ``optimizer`` for ``parameters``. By default it is unchanged.

        Args:
            optimizer: optimizer of the block.
            parameters: parameters of the block.
            across: ranks at this position in all groups.
            num_models: number of averaged models, at least two.

        """
        return LocalState()

    def objection(self, optimizer: Optimizer) -> str | None:
        """Reason why ``optimizer`` cannot be combined with these settings, or None."""
        return None

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Warning before training with this number of models, or None."""
        return None

    def chosen(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Values that ``"auto"`` has chosen for ``optimizer``, to log once before training."""
        return None

    def _check(self) -> None:
        check_whole_or_auto("block_size", self.block_size)
        check_choice("across", self.across, get_args(Across))
        check_choice("across_dtype", self.across_dtype, get_args(AcrossDtype))


class LocalMomentumSync(BlockSync):
    """Base class of the settings with ``local_momentum``.

    Attributes:
        local_momentum: as in :class:`ModelAveraging`.

    """

    local_momentum: LocalMomentum

    @property
    def averages_state(self) -> bool:
        """Whether momentum is averaged."""
        return self.local_momentum == "average"

    def _check(self) -> None:
        super()._check()
        check_choice("local_momentum", self.local_momentum, get_args(LocalMomentum))
        check_flag("overlap", self.overlap)
        if self.overlap and self.local_momentum == "average":
            raise ValueError(
                "overlap=True can't be combined with local_momentum='average', got both: an "
                "average that is one block late does not match the momentum of the local model. "
                "Pass local_momentum='reset' or 'keep'."
            )

    def objection(self, optimizer: Optimizer) -> str | None:
        """Averaging needs the momentum of SGD or RMSprop."""
        if self.local_momentum != "average" or "momentum" in optimizer.defaults:
            return None
        return (
            "local_momentum='average' averages the momentum of SGD or RMSprop, got "
            f"{type(optimizer).__name__}: use BMUFAdam(...) for Adam, AdamW, NAdam and RAdam, and "
            "'reset' or 'keep' for other optimizers, whose state is then not changed"
        )

    def local_state(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        across: Channel,
        num_models: int,
    ) -> LocalState:
        """The treatment that ``local_momentum`` selects."""
        if self.local_momentum == "average":
            return AveragedMomentum(optimizer, parameters)
        return ResetMomentum(optimizer) if self.local_momentum == "reset" else LocalState()


@dataclass(frozen=True, kw_only=True)
class ModelAveraging(LocalMomentumSync):
    """Replace the models of the groups by their mean after every block (MA).

    Attributes:
        block_size: tau, steps between two synchronisations, or ``"auto"``: a twentieth of the steps
            of the run, at most 50, and 50 if the length is unknown.
        local_momentum: ``"reset"`` sets the momentum of the local SGD to zero at the start of each
            block (bmuf eq. 8), ``"keep"`` does not change it, ``"average"`` averages it with the
            models.
        across: ranks that exchange the model. ``"leader"``: one rank of each group, which
            broadcasts the result in its group. ``"sharded"``: each rank of a group exchanges 1/P
            of the model. ``"auto"`` chooses by the number of NICs of the hosts.
        across_dtype: dtype of model updates between hosts: ``"same"`` as the parameters,
            ``"bfloat16"``, or ``"int8"`` with one scale for 512 elements. Rounding errors are added
            to the next update (error feedback). Averaged buffers are not quantised.
        overlap: whether the mean is computed during the next block, distributed over its steps. It
            is applied one block late, and the local update of that block is kept. The equations are
            those of :class:`~lightning_hier.comm.blocks.delay.Delay`.

    Raises:
        ValueError: a value is outside its range.

    """

    block_size: int | Auto = "auto"
    local_momentum: LocalMomentum = "reset"
    across: Across = "auto"
    across_dtype: AcrossDtype = "same"
    overlap: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        self._check()

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
