"""Blockwise model update filtering (BMUF): the arithmetic of one synchronisation of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lightning_hier.algorithms.sums import sum_of_squares

UpdateFrom = Literal["global", "start"]

# Elements filtered at a time: small enough that the intermediate values stay in the cache.
_CHUNK = 1 << 17


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
        ValueError: the three numbers leave no eta in [0, 1).

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
    """How the mean of the local models becomes the next global model and start model.

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
        update_from: what Delta(t) is added to: ``"global"``, W(t-1), as in bmuf; or ``"start"``,
            W_g(t-1), which is two_tiered_bmuf_gtc eq. 4 to the letter and what some toolkits do.
            Then one block contributes (1 + eta) / (1 - eta) times its update instead of
            1 / (1 - eta) under Nesterov block momentum.

    """

    eta: float
    zeta: float = 1.0
    nesterov: bool = True
    update_from: UpdateFrom = "global"

    @property
    def keeps_update(self) -> bool:
        """Whether Delta must be remembered from one block to the next."""
        return self.eta != 0.0

    @property
    def _adds_old_update(self) -> bool:
        # From W(t-1) with Nesterov, eta * Delta(t-1) is already in W_g(t-1).
        return self.keeps_update and not (self.nesterov and self.update_from == "global")

    def start_model(self, global_model: Tensor, update: Tensor | None) -> Tensor:
        """W_g from W and Delta (bmuf eq. 5 or 6); W itself where there is no look-ahead."""
        if update is None or not self.nesterov or not self.keeps_update:
            return global_model
        return global_model.add(update, alpha=self.eta)

    def next_global(self, mean: Tensor, global_model: Tensor, update: Tensor | None) -> Tensor:
        """W(t) from Wbar(t), W(t-1) and Delta(t-1), as a new tensor; changes nothing.

        Written as an interpolation between W_g(t-1) and Wbar(t), so that with zeta = 1 the
        results that the papers state as identities (W = Wbar for model averaging and for Nesterov
        block momentum, bmuf_adam eq. 8) hold exactly and not up to rounding.
        """
        following = self.start_model(global_model, update).lerp(mean, self.zeta)
        if update is not None and self._adds_old_update:
            following.add_(update, alpha=self.eta)
        return following

    def advance_(self, mean: Tensor, global_model: Tensor, update: Tensor | None) -> float:
        """One synchronisation, in place.

        Args:
            mean: Wbar(t), flat; overwritten with W_g(t), the start model of the next block.
            global_model: W(t-1), same shape; becomes W(t).
            update: Delta(t-1), same shape; becomes Delta(t). May be None where eta is 0.

        Returns:
            The sum of the squares of Delta(t).

        """
        squares = 0.0
        for start in range(0, mean.numel(), _CHUNK):
            part = slice(start, start + _CHUNK)
            squares += self._advance_chunk_(
                mean[part], global_model[part], None if update is None else update[part]
            )
        return squares

    def _advance_chunk_(self, mean: Tensor, global_model: Tensor, update: Tensor | None) -> float:
        moved = mean - self.start_model(global_model, update)
        following = self.next_global(mean, global_model, update)
        moved.mul_(self.zeta)
        if update is not None:
            moved = update.mul_(self.eta).add_(moved)
        global_model.copy_(following)
        mean.copy_(self.start_model(global_model, update))
        return sum_of_squares(moved)
