"""Blockwise model update filtering (BMUF): the arithmetic of one synchronisation of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_hier.algorithms.block_passes import block_passes_for
from lightning_hier.algorithms.chunks import chunk_length
from lightning_hier.algorithms.sums import sum_of_squares

UpdateFrom = Literal["global", "start"]

# Elements filtered at a time: small enough that the intermediate values stay in the cache.
_CHUNK = 1 << 15


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
    def _looks_ahead(self) -> bool:
        return self.nesterov and self.keeps_update

    @property
    def _adds_old_update(self) -> bool:
        # From W(t-1) with Nesterov, eta * Delta(t-1) is already in W_g(t-1).
        return self.keeps_update and not (self.nesterov and self.update_from == "global")

    def start_model(self, global_model: Tensor, update: Tensor | None) -> Tensor:
        """W_g from W and Delta (bmuf eq. 5 or 6); W itself where there is no look-ahead."""
        if update is None or not self._looks_ahead:
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

    def leave_out_start_(self, model: Tensor, global_model: Tensor, update: Tensor | None) -> float:
        """Turn a local model into its way from the start model, in place.

        Args:
            model: flat; overwritten with itself minus W_g.
            global_model: W, same shape.
            update: Delta, same shape; None where W_g is W.

        Returns:
            The sum of the squares of what is left.

        """
        behind = update if self._looks_ahead else None
        passes = block_passes_for(model, global_model, behind)
        if passes is not None:
            return passes.leave_out_(model, global_model, behind, self.eta)
        model.sub_(global_model)
        if behind is not None:
            model.sub_(behind, alpha=self.eta)
        return sum_of_squares(model)

    def advance_(
        self, mean: Tensor, global_model: Tensor, update: Tensor | None
    ) -> tuple[float, float]:
        """One synchronisation, in place.

        Args:
            mean: Wbar(t), flat; overwritten with W_g(t), the start model of the next block.
            global_model: W(t-1), same shape; becomes W(t).
            update: Delta(t-1), same shape; becomes Delta(t). May be None where eta is 0.

        Returns:
            The sums of the squares of Wbar(t) and of Delta(t).

        """
        passes = block_passes_for(mean, global_model, update)
        if passes is not None:
            return passes.advance_(
                mean,
                global_model,
                update,
                eta=self.eta,
                zeta=self.zeta,
                ahead=self._looks_ahead,
                adds_old_update=self._adds_old_update,
            )
        return self._by_chunk(self._advance_chunk_, mean, global_model, update)

    def advance_by_(
        self, way: Tensor, global_model: Tensor, update: Tensor | None
    ) -> tuple[float, float]:
        """One synchronisation, in place, from the mean way G(t) instead of the mean model.

        Eq. 3, 4 and 6 as they are printed, in fewer passes than :meth:`advance_`, for means that
        are not known as models.

        Args:
            way: G(t), flat; overwritten with W_g(t), the start model of the next block.
            global_model: as in :meth:`advance_`.
            update: likewise.

        Returns:
            The sums of the squares of G(t) and of Delta(t).

        """
        passes = block_passes_for(way, global_model, update)
        if passes is not None:
            return passes.advance_by_(
                way,
                global_model,
                update,
                eta=self.eta,
                zeta=self.zeta,
                ahead=self._looks_ahead,
                from_start=self._looks_ahead and self.update_from == "start",
            )
        return self._by_chunk(self._advance_chunk_by_, way, global_model, update)

    def global_after(self, way: Tensor, global_model: Tensor, update: Tensor | None) -> Tensor:
        """W(t) from G(t), W(t-1) and Delta(t-1), as a new tensor; changes nothing."""
        following = way.mul(self.zeta)
        if update is not None:
            following.add_(update, alpha=self.eta)
        return following.add_(self._base(global_model, update))

    def _base(self, global_model: Tensor, update: Tensor | None) -> Tensor:
        """What Delta(t) is added to."""
        start = self.update_from == "start"
        return self.start_model(global_model, update) if start else global_model

    def _by_chunk(
        self,
        work: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        mean: Tensor,
        global_model: Tensor,
        update: Tensor | None,
    ) -> tuple[float, float]:
        of_mean = of_update = 0.0
        length = chunk_length(mean, _CHUNK)
        for start in range(0, mean.numel(), length):
            part = slice(start, start + length)
            own = None if update is None else update[part]
            of_mean += sum_of_squares(mean[part])
            of_update += sum_of_squares(work(mean[part], global_model[part], own))
        return of_mean, of_update

    def _advance_chunk_(self, mean: Tensor, global_model: Tensor, update: Tensor | None) -> Tensor:
        """As :meth:`advance_`; returns Delta(t)."""
        start = self.start_model(global_model, update)
        moved = torch.sub(mean, start)
        if self.zeta == 1.0:
            global_model.copy_(mean)
        else:
            moved.mul_(self.zeta)
            torch.lerp(start, mean, self.zeta, out=global_model)
        if update is None:
            mean.copy_(global_model)
            return moved
        if self._adds_old_update:
            global_model.add_(update, alpha=self.eta)
        torch.add(moved, update, alpha=self.eta, out=update)
        self._write_start(mean, global_model, update)
        return update

    def _advance_chunk_by_(
        self, way: Tensor, global_model: Tensor, update: Tensor | None
    ) -> Tensor:
        """As :meth:`advance_by_`; returns Delta(t)."""
        if self.zeta != 1.0:
            way.mul_(self.zeta)
        if update is None:
            moved = way.clone()
            way.copy_(global_model.add_(moved))
            return moved
        if self.update_from == "start" and self._looks_ahead:
            global_model.add_(update, alpha=self.eta)
        torch.add(way, update, alpha=self.eta, out=update)
        global_model.add_(update)
        self._write_start(way, global_model, update)
        return update

    def _write_start(self, out: Tensor, global_model: Tensor, update: Tensor) -> None:
        if self._looks_ahead:
            torch.add(global_model, update, alpha=self.eta, out=out)
        else:
            out.copy_(global_model)
