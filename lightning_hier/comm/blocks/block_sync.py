"""Settings of block synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import Self

from lightning_hier.algorithms.arguments import (
    NamedArguments,
    check_choice,
    check_share,
    check_whole,
    check_whole_or_auto,
    is_number,
)
from lightning_hier.algorithms.automatic import Auto, auto_block_size
from lightning_hier.algorithms.block_rule import QSR
from lightning_hier.comm.blocks.bucket import Merge
from lightning_hier.comm.blocks.exchange import AcrossDtype
from lightning_hier.comm.blocks.local_state import LocalState
from lightning_hier.comm.blocks.outer_step import EtaOf, OuterOptimizer
from lightning_hier.comm.blocks.shard_placement import Across

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.block_context import BlockContext

# Measured in docs/reports/defaults.md.
_BLOCKS_OF_RUN = 125

Weighting = Literal["equal", "samples"]
"""Weights of the groups in a mean of models."""


@dataclass(frozen=True, kw_only=True)
class BlockSync(NamedArguments):
    """Base class of the settings for ``HierarchicalStrategy(block_sync=...)``.

    Attributes:
        block_size: tau, steps between two synchronisations of a parameter, or ``"auto"``: a 125th
            of the steps of the run, from 4 to 50, and 50 if the length is unknown.
        across: ranks that exchange the model. ``"leader"``: one rank of each group, which
            broadcasts the result in its group. ``"sharded"``: each rank of a group exchanges 1/P
            of the model. ``"auto"`` chooses by the number of NICs of the hosts.
        across_dtype: dtype of model updates between hosts: ``"same"`` as the parameters,
            ``"bfloat16"``, ``"int8"`` with one scale for 512 elements, or ``"int4"`` with one scale
            for 128. Rounding errors are added to the next update (error feedback). Averaged buffers
            are not quantised.
        across_density: share of the elements of an update that is sent between hosts. Below 1,
            the largest magnitudes of each 4096 elements, with values in ``across_dtype``
            (``"same"``: float32, and float64 for float64 parameters). The others are added to the
            next update (error feedback). The bytes grow with the number of hosts, see
            ``docs/algorithms.md``. Averaged buffers and optimizer state are sent whole.
        fragments: n, at most tau. The parameters are divided, in the order of the module, into n
            fragments of about equal bytes, and fragment i is synchronised at the steps
            ``tau (i + 1) / n + k tau``, rounded down, k = 0, 1, ... (streaming_diloco 2.1).
            A parameter is never divided.
        overlap: delay in steps, at most tau: a fragment is sent so many steps before its
            synchronisation, and its mean is computed during these steps. True is tau. Averaged
            buffers are not delayed. The equations are those of
            :class:`~lightning_hier.comm.blocks.bucket.Bucket`.
        merge: what becomes of a group's local model when a new start model arrives. A number alpha
            in [0, 1] makes ``alpha * (local model) + (1 - alpha) * (start model)``, also without
            ``overlap``. ``"progress"`` keeps the steps made while the fragment was in flight, and
            adds their update to the start model; without ``overlap`` it is an alpha of 0.
        block_rule: computes the steps of each block from the learning rate of its first step, with
            ``block_size`` as the least, see :class:`~lightning_hier.QSR`. None: all have
            ``block_size`` steps. With several parameter groups, the largest learning rate counts.
        weighting: weight of each group in the mean: ``"equal"``, or ``"samples"``: by the samples
            of its block, where batches or speeds differ. The number of models in an automatic
            momentum is then the effective number of groups, see ``docs/algorithms.md``. The samples
            of a batch are the size of the first dimension of its tensors, or what
            ``batch_samples(batch)`` of the LightningModule returns, if it has this method.

    Raises:
        ValueError: a value is outside its range.

    """

    block_size: int | Auto = "auto"
    across: Across = "auto"
    across_dtype: AcrossDtype = "same"
    across_density: float = 1.0
    fragments: int = 1
    overlap: bool | int = False
    merge: Merge = "progress"
    block_rule: QSR | None = None
    weighting: Weighting = "equal"

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole_or_auto("block_size", self.block_size)
        check_choice("across", self.across, get_args(Across))
        check_choice("across_dtype", self.across_dtype, get_args(AcrossDtype))
        check_share("across_density", self.across_density)
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_whole("fragments", self.fragments)
        if not isinstance(self.overlap, bool):
            check_whole("overlap", self.overlap, least=0)
        if self.merge != "progress" and (not is_number(self.merge) or not 0.0 <= self.merge <= 1.0):
            raise ValueError(f"merge must be 'progress' or a number in [0, 1], got {self.merge!r}")
        if self.block_rule is not None:
            if not isinstance(self.block_rule, QSR):
                raise ValueError(f"block_rule must be QSR(...) or None, got {self.block_rule!r}")
            if self.block_size != "auto":  # otherwise its number is not known yet
                self.block_rule.check_least(self.block_size)
        # All steps of a block are then made in flight, and a merge of 0 keeps none of them.
        if self.delays_block and self.merge == 0.0:
            raise ValueError(
                f"merge=0 with overlap={self.overlap}, a whole block, would give up every step: "
                "pass a shorter overlap, or merge='progress'"
            )
        # True, a delay of a whole block, counts as 1 here and is never too long.
        for name, value in (("fragments", self.fragments), ("overlap", int(self.overlap))):
            if self.block_size != "auto" and value > self.block_size:
                raise ValueError(
                    f"{name} must be at most block_size, got {name}={value} and "
                    f"block_size={self.block_size}: lower {name}, or make blocks longer"
                )

    @property
    def has_error_feedback(self) -> bool:
        """Whether updates are quantised or sparse, and errors are added to the next update."""
        return self.across_dtype != "same" or self.across_density < 1.0

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

    def delay(self, block_size: int) -> int:
        """Steps between sending a fragment and applying its mean, in a block of this size."""
        return block_size if self.overlap is True else int(self.overlap)

    @property
    def delays_block(self) -> bool:
        """Whether the delay is a whole block."""
        return self.overlap is True or self.overlap == self.block_size

    def automatic(self, *, varies: bool = False) -> list[str]:
        """Names of the settings that depend on the length of the run.

        Args:
            varies: whether the effective number of groups may be another one for every mean.

        """
        return ["block_size"] if self.block_size == "auto" else []

    def resolved(self, run_steps: float, num_models: int, *, varies: bool = False) -> Self:
        """Return the same settings with a number instead of each ``"auto"`` of :meth:`automatic`.

        Args:
            run_steps: steps of one optimizer in the run, or infinity if unknown.
            num_models: averaged models.
            varies: as in :meth:`automatic`.

        """
        if self.block_size != "auto":
            return self
        # A block has at least a step for each fragment, and for the delay.
        least = max(self.fragments, int(self.overlap))
        steps = max(auto_block_size(run_steps, self.blocks_of_run(num_models)), least)
        return replace(self, block_size=steps)

    def blocks_of_run(self, num_models: int) -> int:
        """Number of blocks of a run, from which ``block_size="auto"`` follows."""
        return _BLOCKS_OF_RUN

    def check_eta_of(self) -> None:
        """Check that an automatic momentum can be another one for every mean.

        Raises:
            ValueError: it cannot.

        """

    def stepping(
        self, optimizer: Optimizer, num_models: int
    ) -> Callable[[], AbstractContextManager[None]]:
        """Function that creates the context of each step of ``optimizer`` while blocks run."""
        return nullcontext

    def prepare_to_load(self, optimizer: Optimizer) -> None:
        """Create state of ``optimizer`` that torch would create otherwise when it loads one."""

    @property
    def averages_state(self) -> bool:
        """Whether state of the local optimizer is averaged with the model."""
        return False

    @property
    def state_every(self) -> int:
        """Number of blocks between two averages of the local optimizer's state."""
        return 1

    def outer_of(self, num_models: int) -> OuterOptimizer:
        """Function that makes the outer optimizer for ``num_models`` averaged models.

        Raises:
            ValueError: the settings do not support this number of models.

        """
        raise NotImplementedError

    def eta_of(self, num_models: int) -> EtaOf | None:
        """Function that computes an automatic momentum from the effective number of models.

        None if the momentum is set, or if there is a single model, which has none.
        """
        return None

    def check_models(self, num_models: int) -> None:
        """Check that the settings suit ``num_models`` averaged models.

        Raises:
            ValueError: they do not.

        """
        self.outer_of(num_models)

    def local_state(self, context: BlockContext, parameters: Sequence[Parameter]) -> LocalState:
        """Treatment of the state of the optimizer for ``parameters``, with several models.

        By default it is unchanged.
        """
        return LocalState()

    def objection(self, optimizer: Optimizer) -> str | None:
        """Reason why ``optimizer`` cannot be combined with these settings, or None."""
        return None

    @property
    def leaves_mean(self) -> bool:
        """Whether an outer step moves W away from the mean of the local models.

        Running statistics, as BatchNorm's, are those of the mean, and not of W.
        """
        return False

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Warning before training with this number of models, or None."""
        return None

    def chosen(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Values that ``"auto"`` has chosen for ``optimizer``, to log once before training."""
        return None
