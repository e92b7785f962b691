"""Settings of block synchronisation with an outer optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch.optim import Optimizer
from typing_extensions import Self, override

from lightning_hier.algorithms.arguments import check_flag, check_positive, is_number
from lightning_hier.algorithms.automatic import Auto, momentum_of_run
from lightning_hier.algorithms.block_momentum import BlockMomentum
from lightning_hier.comm.blocks.block_sync import BlockSync
from lightning_hier.comm.blocks.local_state import steps_by_rate
from lightning_hier.comm.blocks.outer_step import EtaOf, OuterOptimizer, check_outer_optimizer

# ``least_blocks`` of momentum_of_run.
_MOMENTUM_BLOCKS = 20

# Largest weight of an update, nu / (1 - mu), that suits SGD with the learning rate of DDP.
_LARGEST_GAIN = 1.5


@dataclass(frozen=True, kw_only=True)
class DiLoCo(BlockSync):
    """Step an outer optimizer with minus the mean local update of each block (DiLoCo).

    With the default, SGD with Nesterov momentum mu and learning rate nu, the global model W and the
    mean G(t) of the groups' local updates in block t (diloco algorithm 1)::

        m(t) = mu * m(t-1) + G(t)
        W(t) = W(t-1) + nu * (G(t) + mu * m(t))       nesterov=False: nu * m(t)

    Every block starts from W. With mu = eta and nu = zeta, blocks start from the models from which
    those of ``BMUF(block_momentum=eta, block_lr=zeta, local_momentum="keep")`` start, but the
    global model, which is validated and saved, contains the look-ahead.

    The state of the inner optimizer, which may be any, stays with its group.

    Attributes are those of :class:`BlockSync`, and

    Attributes:
        block_size: H, as tau of :class:`BlockSync`; ``"auto"`` as of :class:`BMUFAdam`.
        outer_lr: nu, above 0.
        outer_momentum: mu in [0, 1), or ``"auto"``: ``1 - outer_lr / M`` for M groups, and at most
            ``1 - 20 / B`` in a run of B blocks. With ``weighting="samples"`` or membership, it
            follows the effective number of groups at every mean, and not B.
        nesterov: whether the momentum is Nesterov's.
        outer_optimizer: makes any other optimizer of ``torch.optim`` from parameters, for instance
            ``partial(torch.optim.AdamW, lr=0.1)``; in YAML ``{class_path: torch.optim.AdamW,
            init_args: {lr: 0.1}}``. The three arguments above are then left out.

    Raises:
        ValueError: a value outside its range, or an outer optimizer that can't step a part of
            the model by itself.

    """

    block_size: int | Auto = 100
    outer_lr: float = 0.7
    outer_momentum: float | Literal["auto"] = 0.9
    nesterov: bool = True
    outer_optimizer: OuterOptimizer | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_positive("outer_lr", self.outer_lr)
        check_flag("nesterov", self.nesterov)
        if self.outer_momentum != "auto" and not (
            is_number(self.outer_momentum) and 0.0 <= self.outer_momentum < 1.0
        ):
            raise ValueError(
                f"outer_momentum must be 'auto' or lie in [0, 1), got {self.outer_momentum!r}"
            )
        if self.weighting == "samples":
            self.check_eta_of()
        if self.outer_optimizer is not None:
            check_outer_optimizer(self.outer_optimizer)
            # A value that equals the default cannot be distinguished from one that was left out.
            for name in ("outer_lr", "outer_momentum", "nesterov"):
                if (value := getattr(self, name)) not in (getattr(DiLoCo, name), "auto"):
                    raise ValueError(
                        f"{name} has no effect with outer_optimizer, got {name}={value!r}: set it "
                        "there, as in partial(torch.optim.SGD, lr=0.3), or leave it out"
                    )

    @override
    def check_eta_of(self) -> None:
        """See :class:`BlockSync`."""
        if self.outer_momentum == "auto" and self.outer_lr > 1.0:
            raise ValueError(
                f"outer_lr={self.outer_lr:g} with outer_momentum='auto' and weighting='samples' or "
                "membership must be at most 1: the effective number of groups may be 1, and the "
                "momentum would be 1 - outer_lr, below 0. Lower outer_lr, or set outer_momentum"
            )

    @override
    def blocks_of_run(self, num_models: int) -> int:
        """See :class:`BMUFAdam`."""
        return _MOMENTUM_BLOCKS * num_models

    @override
    def automatic(self, *, varies: bool = False) -> list[str]:
        """See :class:`BlockSync`."""
        depends = self.outer_momentum == "auto" and self.outer_optimizer is None and not varies
        return super().automatic(varies=varies) + ["outer_momentum"] * depends

    @override
    def resolved(self, run_steps: float, num_models: int, *, varies: bool = False) -> Self:
        """See :class:`BlockSync`."""
        known = super().resolved(run_steps, num_models, varies=varies)
        if "outer_momentum" not in self.automatic(varies=varies):
            return known
        momentum, blocks = self.momentum(num_models), run_steps / known.steps
        momentum = momentum_of_run(momentum, self.outer_lr, blocks, _MOMENTUM_BLOCKS)
        return replace(known, outer_momentum=momentum)

    def momentum(self, num_models: int) -> float:
        """Mu for so many averaged models.

        Raises:
            ValueError: ``"auto"`` gives no value in [0, 1).

        """
        if self.outer_momentum != "auto":
            return self.outer_momentum
        momentum = 1.0 - self.outer_lr / num_models
        if num_models == 1:  # nothing is averaged, and any outer_lr up to 1 counts updates once
            momentum = max(momentum, 0.0)
        if not 0.0 <= momentum < 1.0:
            raise ValueError(
                f"outer_momentum='auto' gives 1 - outer_lr / M = {momentum:g} with "
                f"outer_lr={self.outer_lr:g} and M = {num_models} groups, and must lie in [0, 1): "
                f"lower outer_lr to at most {num_models}, or set outer_momentum"
            )
        return momentum

    @override
    def eta_of(self, num_models: int) -> EtaOf | None:
        """See :class:`BlockSync`."""
        if self.outer_momentum != "auto" or num_models == 1:
            return None
        return lambda effective: 1.0 - self.outer_lr / effective  # as momentum(1) for one group

    @property
    @override
    def leaves_mean(self) -> bool:
        """See :class:`BlockSync`. Only nu = 1 without momentum is the mean."""
        return self.outer_optimizer is not None or (self.outer_lr, self.outer_momentum) != (1, 0)

    @override
    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """See :class:`BlockSync`. Advise less momentum for sparse updates, and for SGD."""
        # Measured in docs/reports. Other outer optimizers were not.
        if self.outer_optimizer is not None:
            return None
        momentum = self.momentum(num_models)
        counts = self.outer_lr / (1.0 - momentum)
        if self.across_density == 1.0 and counts > _LARGEST_GAIN and steps_by_rate(optimizer):
            return (
                f"DiLoCo with an outer momentum of {momentum:.3g} and outer_lr={self.outer_lr:g} "
                f"counts each update {counts:.2g} times, which is too often for "
                f"{type(optimizer).__name__} with the learning rate of DDP: use BMUF(...), or pass "
                "outer_lr=0.7 and outer_momentum=0.3."
            )
        if self.across_density == 1.0 or momentum == 0.0:
            return None
        return (
            f"across_density={self.across_density:g} with an outer momentum of {momentum:.3g} "
            "learns less than without momentum, because error feedback delays updates as well: "
            "pass outer_momentum=0 and outer_lr=1."
        )

    @override
    def outer_of(self, num_models: int) -> OuterOptimizer:
        """See :class:`BlockSync`. SGD by block momentum, which takes a third of its time."""
        return self.outer_optimizer or partial(
            BlockMomentum,
            block_momentum=self.momentum(num_models),
            block_lr=self.outer_lr,
            nesterov=self.nesterov,
            includes_ahead=True,
        )
