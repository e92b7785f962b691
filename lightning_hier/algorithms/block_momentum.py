"""Blockwise model-update filtering (BMUF): the equations of one synchronisation of models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor

from lightning_hier.algorithms.kernels import kernels_for
from lightning_hier.algorithms.kernels.reference import BlockCoefficients, SumOfSquares

UpdateFrom = Literal["global", "start"]


def auto_block_momentum(num_models: int, *, block_lr: float = 1.0, c: float = 1.0) -> float:
    """Block momentum eta from the number of averaged models.

    ``block_lr / (num_models * (1 - eta)) = c`` (bmuf eq. 10, two_tiered_bmuf_gtc eq. 5), solved
    for eta. One model is not averaged with anything, so it has no block momentum.

    Args:
        num_models: N, the models that one synchronisation averages (workers in BMUF, groups in
            BMUF_GTC).
        block_lr: zeta, the learning rate of the global update.
        c: C, the weight of one mini-batch relative to plain SGD; 1 or slightly more.

    Raises:
        ValueError: eta is not in [0, 1).

    """
    if num_models == 1:
        return 0.0
    eta = 1.0 - block_lr / (c * num_models)
    if not 0.0 <= eta < 1.0:
        raise ValueError(
            f"block_momentum='auto' gives 1 - block_lr / (c * models) = {eta:g} with "
            f"block_lr={block_lr:g}, c={c:g} and {num_models} models, and block momentum must lie "
            f"in [0, 1): lower block_lr to at most {c * num_models:g}, or set block_momentum."
        )
    return eta


@dataclass(frozen=True, kw_only=True)
class BlockFilter:
    """The next global model and start model from the mean of the local models.

    With the mean Wbar(t) of the local models and the start model W_g(t-1) of the block::

        G(t)     = Wbar(t) - W_g(t-1)                      bmuf eq. 2
        Delta(t) = eta * Delta(t-1) + zeta * G(t)          bmuf eq. 3
        W(t)     = W(t-1) + Delta(t)                       bmuf eq. 4
        W_g(t)   = W(t)                                    classical, bmuf eq. 5
        W_g(t)   = W(t) + eta * Delta(t)                   Nesterov, bmuf eq. 6

    ``eta = 0, zeta = 1`` is model averaging. Because W_g always follows from W and Delta, only
    these two are kept.

    Attributes:
        eta: block momentum, in [0, 1).
        zeta: block learning rate, above 0.
        nesterov: whether blocks start from the look-ahead W + eta * Delta.
        update_from: the model to which Delta(t) is added: ``"global"``, W(t-1), as in bmuf; or
            ``"start"``, W_g(t-1), as in two_tiered_bmuf_gtc eq. 4 and in some toolkits. With
            ``"start"`` and Nesterov, the total contribution of a block is (1 + eta) / (1 - eta)
            times its update instead of 1 / (1 - eta).
        includes_ahead: whether W contains the look-ahead, as the global model of DiLoCo does. With
            Nesterov, ``W(t) = W(t-1) + zeta * G(t) + eta * Delta(t)``, which is W_g of eq. 6, and
            W_g is W. :meth:`advance_by_` supports it, :meth:`advance_` does not.

    """

    eta: float
    zeta: float = 1.0
    nesterov: bool = True
    update_from: UpdateFrom = "global"
    includes_ahead: bool = False

    @cached_property
    def keeps_update(self) -> bool:
        """Whether Delta is state that must be kept between blocks."""
        # With eta = 0, the next Delta does not depend on the last one.
        return self.eta != 0.0

    @cached_property
    def _looks_ahead(self) -> bool:
        # With includes_ahead, W is the start model itself, and nothing is added to it.
        return self.nesterov and self.keeps_update and not self.includes_ahead

    @cached_property
    def _adds_old_update(self) -> bool:
        # With Nesterov from W(t-1), W_g(t-1) already contains eta * Delta(t-1).
        return self.keeps_update and not (self.nesterov and self.update_from == "global")

    def start_model(self, global_model: Tensor, update: Tensor | None) -> Tensor:
        """W_g from W and Delta (bmuf eq. 5 or 6), a new tensor; W itself without a look-ahead."""
        if update is None or not self._looks_ahead:
            return global_model
        return global_model.add(update, alpha=self.eta)

    def leave_out_start_(
        self, model: Tensor, global_model: Tensor, update: Tensor | None
    ) -> SumOfSquares:
        """Turn a local model into its difference from the start model, in place.

        Args:
            model: local model, flat. Becomes its difference from W_g.
            global_model: W, same shape.
            update: Delta, same shape, or None if W_g is W.

        Returns:
            The sum of squares of the difference.

        """
        ahead = update if self._looks_ahead else None
        kernels = kernels_for(model, global_model, ahead)
        return kernels.subtract_start_(model, global_model, ahead, self.eta)

    def advance_(
        self, mean: Tensor, global_model: Tensor, update: Tensor | None
    ) -> tuple[SumOfSquares, SumOfSquares]:
        """One synchronisation, in place.

        W is an interpolation between W_g(t-1) and Wbar(t), so that W = Wbar for model averaging and
        for Nesterov block momentum with zeta = 1 (bmuf_adam eq. 8) holds bit for bit.

        Args:
            mean: Wbar(t), flat. Becomes W_g(t), the start model of the next block.
            global_model: W(t-1), same shape. Becomes W(t).
            update: Delta(t-1), same shape. Becomes Delta(t). May be None if eta is 0.

        Returns:
            The sums of squares of Wbar(t) and of Delta(t).

        """
        # Without W_g(t-1), which follows from W and Delta: it would be one more model in memory.
        by = BlockCoefficients(self.eta, self.zeta, self._looks_ahead, self._adds_old_update)
        return kernels_for(mean, global_model, update).advance_(mean, global_model, update, by)

    def advance_by_(
        self, gradient: Tensor, global_model: Tensor, update: Tensor | None
    ) -> tuple[SumOfSquares, SumOfSquares]:
        """One synchronisation, in place, from the mean local update instead of the mean model.

        Computes eq. 3, 4 and 6 directly, in fewer passes than :meth:`advance_`. Quantised and
        overlapped synchronisations average local updates and not models.

        Args:
            gradient: G(t), flat. Becomes W_g(t), the start model of the next block.
            global_model: as in :meth:`advance_`.
            update: as in :meth:`advance_`.

        Returns:
            The sums of squares of G(t) and of Delta(t), or of ``W(t) - W(t-1)`` if W contains the
            look-ahead.

        """
        # Delta(t) is then added to W_g(t-1), which is W(t-1) + eta * Delta(t-1).
        from_start = self._looks_ahead and self.update_from == "start"
        inside = self.nesterov and self.includes_ahead
        by = BlockCoefficients(self.eta, self.zeta, self._looks_ahead, from_start, inside)
        kernels = kernels_for(gradient, global_model, update)
        return kernels.advance_by_(gradient, global_model, update, by)
