"""Settings of BMUF for Adam, AdamW, NAdam and RAdam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.nn import Parameter
from torch.optim import Optimizer
from typing_extensions import Self, override

from lightning_hier.algorithms.arguments import check_choice, check_whole_or_auto, is_number
from lightning_hier.algorithms.automatic import MOMENTS_EVERY, Auto
from lightning_hier.comm.blocks.adam_state import SUPPORTED, AdamMoments, create_states
from lightning_hier.comm.blocks.bmuf import BlockMomentumSync
from lightning_hier.comm.blocks.local_state import LocalState, stepping_with

if TYPE_CHECKING:
    from lightning_hier.comm.blocks.block_context import BlockContext

Moments = Literal["corrected", "average"]

LocalBeta1 = float | Auto | Literal["keep"]

# bmuf_adam 2.2, last paragraph.
_ADVISED_BETA1 = 0.5
_MANY_MODELS = 16


@dataclass(frozen=True, kw_only=True)
class BMUFAdam(BlockMomentumSync):
    """BMUF for Adam, AdamW, NAdam and RAdam: moments and step count follow the model (bmuf_adam).

    After a block of tau steps, with the means mbar and vbar over the groups (eq. 18)::

        rho_n  = eta * rho_{n-1} + tau
        m_init = beta1^tau (beta1^(eta rho_n) - 1) / (1 - beta1^tau) * m_init_prev
               + (1 - beta1^(tau + eta rho_n)) / (1 - beta1^tau) * mbar
        v_init = the same with beta2 and v
        k     <- k + eta * rho_n                      step count of the bias correction

    This is derived for Nesterov block momentum with ``block_lr=1``, for which a block starts
    ``eta * Delta_n`` after the mean model. The same correction is applied with ``nesterov=False``,
    as in the paper, and with another ``block_lr``, for which there is no derivation. For NAdam and
    RAdam see ``docs/algorithms.md``.

    With ``overlap``, the moments are sent with the update of their fragment, and corrected for the
    s steps that a group makes before the means arrive
    (:class:`~lightning_hier.comm.blocks.adam_state.AdamMoments`)::

        m <- m + beta1^s (m_init - m(sent))           v the same, with beta2 and at least 0
        k <- k + eta * rho_n

    Every gradient stays in the moments. With ``merge=alpha``, Delta contains fewer steps:
    ``rho_n = (1 - alpha) (eta * rho_{n-1} - s) + tau``, and ``(1 - alpha) eta * rho_n`` stands for
    the look-ahead. A rank keeps its shard of both moments at the last exchange, when they were
    sent, and in flight: 6 vectors of the length of the shard of the model.

    The look-ahead and the extrapolated moments act as momentum between blocks. The paper therefore
    advises a first beta of 0.5 for the local optimizer (2.2, last paragraph), which
    ``local_beta1="auto"`` uses while blocks run. Outside of steps, ``param_groups`` of the
    optimizer contain the user's value, so schedulers and checkpoints use that.

    Attributes are those of :class:`BlockSync` and :class:`BMUF`'s ``block_momentum`` (``"auto"`` is
    at most ``1 - 20 / B``), ``block_lr``, ``c`` and ``nesterov``, and

    Attributes:
        block_size: tau, steps between two synchronisations, or ``"auto"``: for 20 blocks for each
            averaged model, from 4 to 50, and 50 if the length of the run is unknown.
        moments: ``"corrected"`` as above, or ``"average"``: ``m_init = mbar``, ``v_init = vbar``
            and k unchanged (eq. 13), the paper's baseline.
        moments_every: blocks between two exchanges of the moments, which stay local in between, as
            in DES-LOC (arXiv 2505.22549). rho_n follows every block. The tau of an exchange is
            that of all blocks since the last one. ``"auto"``: 4 if ``block_size`` is ``"auto"``,
            otherwise 1.
        local_beta1: largest first beta of the local optimizer while blocks run and there are
            several groups: ``"auto"`` (0.5), a number in [0, 1), or ``"keep"`` (no limit).
        across_dtype: as in :class:`BlockSync`. If updates are quantised or sparse, moments are sent
            whole, as ``"bfloat16"``, because second moments span too many orders of magnitude for
            integers with a common scale.

    Raises:
        ValueError: a value is outside its range.

    """

    moments: Moments = "corrected"
    moments_every: int | Auto = "auto"
    local_beta1: LocalBeta1 = "auto"

    @property
    def averages_state(self) -> bool:
        """Whether state is averaged: moments are."""
        return True

    @property
    def state_every(self) -> int:
        """``moments_every``, or 1 while it is ``"auto"``."""
        return 1 if self.moments_every == "auto" else self.moments_every

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        check_whole_or_auto("moments_every", self.moments_every)
        # With blocks of the user's own, moments are exchanged as often as in the paper.
        if self.moments_every == "auto" and self.block_size != "auto":
            object.__setattr__(self, "moments_every", 1)
        check_choice("moments", self.moments, get_args(Moments))
        beta1: Any = self.local_beta1
        if beta1 not in ("auto", "keep") and not (is_number(beta1) and 0.0 <= beta1 < 1.0):
            raise ValueError(f"local_beta1 must be 'auto', 'keep' or lie in [0, 1), got {beta1!r}")

    @override
    def automatic(self, *, varies: bool = False) -> list[str]:
        """See :class:`BlockSync`."""
        return super().automatic(varies=varies) + ["moments_every"] * (self.moments_every == "auto")

    @override
    def resolved(self, run_steps: float, num_models: int, *, varies: bool = False) -> Self:
        """See :class:`BlockSync`."""
        known = super().resolved(run_steps, num_models, varies=varies)
        if self.moments_every != "auto":
            return known
        # With its blocks known, it has taken them for those of the user.
        return replace(known, moments_every=MOMENTS_EVERY)

    @override
    def blocks_of_run(self, num_models: int) -> int:
        """So many that block momentum is 1 - 1/N, which builds up over N blocks."""
        return self.momentum_blocks * num_models

    @property
    def largest_beta1(self) -> float:
        """Largest first beta of a local optimizer while blocks run."""
        if self.local_beta1 == "auto":
            return _ADVISED_BETA1
        return 1.0 if self.local_beta1 == "keep" else self.local_beta1

    @override
    def prepare_to_load(self, optimizer: Optimizer) -> None:
        """Create the moments and counts, which may be fractions."""
        create_states(optimizer)

    @override
    def stepping(
        self, optimizer: Optimizer, num_models: int
    ) -> Callable[[], AbstractContextManager[None]]:
        """Context that limits first betas to ``local_beta1``."""
        # A single model is plain Adam, bit for bit.
        if num_models == 1 or self.local_beta1 == "keep":
            return nullcontext
        return partial(stepping_with, optimizer, self._lowered)

    def _lowered(self, group: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = group["betas"]
        return {"betas": (min(beta1, self.largest_beta1), beta2)}

    def local_state(self, context: BlockContext, parameters: Sequence[Parameter]) -> LocalState:
        """Treatment of the moments, which are averaged with the model."""
        # A local model that is mixed with the start model gets this share of the look-ahead.
        ahead = 1.0 if self.merge == "progress" else 1.0 - self.merge
        return AdamMoments(
            context.optimizer,
            parameters,
            corrected=self.moments == "corrected",
            eta=self.eta(context.communicators.models),
            ahead=ahead,
            largest_beta1=self.largest_beta1,
            across=context.communicators.across,
            eta_of=context.eta_of,
        )

    def objection(self, optimizer: Optimizer) -> str | None:
        """Reject optimizers other than Adam, AdamW, NAdam and RAdam, and amsgrad."""
        if not isinstance(optimizer, SUPPORTED):
            return (
                f"BMUFAdam needs an optimizer with Adam's moments, got {type(optimizer).__name__}: "
                "use Adam, AdamW, NAdam or RAdam for all parameters, or DiLoCo(...) or BMUF(...), "
                "which support every optimizer"
            )
        if any(group.get("amsgrad") for group in optimizer.param_groups):
            return (
                "BMUFAdam can't be combined with amsgrad=True: the maximum of second moments can "
                "neither be averaged nor extrapolated to the look-ahead. Leave out amsgrad."
            )
        return None

    def advice(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Warning before training, or None."""
        late = super().advice(optimizer, num_models)
        if late is not None:
            return late
        largest = max(float(group["betas"][0]) for group in optimizer.param_groups)
        largest = min(largest, self.largest_beta1)  # that with which the optimizer steps
        if largest <= _ADVISED_BETA1 or num_models <= _MANY_MODELS:
            return None
        return (
            f"beta1={largest:g} with {num_models} averaged models: moments are replaced at every "
            "block, and with a large beta1 the last gradients of a block have less weight. Leave "
            f"local_beta1 at 'auto', or pass betas=({_ADVISED_BETA1:g}, 0.999)."
        )

    @override
    def chosen(self, optimizer: Optimizer, num_models: int) -> str | None:
        """Message about a reduced first beta, or None."""
        largest = max(float(group["betas"][0]) for group in optimizer.param_groups)
        if self.local_beta1 != "auto" or num_models == 1 or largest <= _ADVISED_BETA1:
            return None
        return (
            f"local_beta1='auto': {type(optimizer).__name__} uses a first beta of "
            f"{_ADVISED_BETA1:g} instead of {largest:g} while blocks run ('keep' disables this)"
        )
